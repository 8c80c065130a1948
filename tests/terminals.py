"""Commands in a terminal, and what they show there."""

import os
import pty
import re
import select
import subprocess

from fedbary.launching.launch import OF_FLOWER


def shown_in_a_terminal(*command, cwd, environment=os.environ):
    """Run a command that ends well in a terminal; return what it shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, cwd=cwd, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
        env={**environment, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    assert process.wait() == 0, shown.decode()
    return shown.decode()


def _read(terminal):
    assert select.select([terminal], [], [], 300)[0], "nothing is said, and nothing ends"
    try:
        return os.read(terminal, 4096)
    except OSError:  # its other end is closed
        return b""


def shows_its_rounds_and_its_lines(text):
    """Assert that a run of two rounds with three clients showed both, and nothing of Flower's."""
    assert re.search(r"round 2/2  (train|evaluate) \d of 3 clients", text), text
    assert re.search(r"round 2/2  accuracy", text) and "Results:" in text
    assert not any(words in text for words in OF_FLOWER), text
