"""In a terminal a bar shows the running round beside the log; elsewhere nothing changes."""

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedbary.launching.bar import OF_FLOWER
from fedbary.launching.launch import progress_in
from fedbary.runs.progress import Progress
from server_app.inline import InlineGrid
from server_app.watched import Watched

ECHO = ClientApp()


@ECHO.train()
def echo(message, context):
    return Message(message.content, reply_to=message)


def messages(count, kind="train"):
    content = {"arrays": ArrayRecord(), "config": ConfigRecord({"server-round": 3})}
    return [Message(RecordDict({**content}), node, kind) for node in range(2, 2 + count)]


def test_every_answer_is_counted_as_it_comes_and_none_is_lost(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Progress, "write", lambda self, file: seen.append(self))
    grid = Watched(InlineGrid(ECHO, 4, {}), tmp_path / "progress.json", 5)
    replies = list(grid.send_and_receive(messages(4)))
    assert sorted(reply.metadata.src_node_id for reply in replies) == [2, 3, 4, 5]
    assert seen == [Progress(3, 5, "train", answered, 4) for answered in (1, 2, 3, 4)]
    assert list(grid.get_node_ids()) == [2, 3, 4, 5]


def test_who_never_answers_is_waited_for_until_the_timeout(tmp_path):
    inline = InlineGrid(ECHO, 2, {})
    inline.pull_messages = lambda ids: []
    grid = Watched(inline, tmp_path / "progress.json", 5)
    assert list(grid.send_and_receive(messages(2), timeout=0.2)) == []
    assert Progress.read(tmp_path / "progress.json") == Progress(3, 5, "train", 0, 2)


def test_the_part_grows_from_0_to_1_over_a_run():
    said = [Progress(r, 2, d, a, 2) for r in (1, 2) for d, a in
            (("train", 0), ("train", 1), ("train", 2), ("evaluate", 0))]  # fmt: skip
    assert [progress.part for progress in said] == [0, 0.25, 0.5, 0.5, 0.5, 0.75, 1, 1]


def test_nothing_is_written_where_no_terminal_waits(tmp_path):
    assert progress_in(tmp_path, None) == {}  # pytest captures the output
    assert Progress.read(tmp_path / "progress.json") is None


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_a_run_in_a_terminal_shows_its_rounds_and_its_lines(engine, tmp_path):
    ours, theirs = pty.openpty()
    words = f"clients=3 rounds=2 local_epochs=1 samples=2 output=run engine={engine}".split()
    command = [str(Path(sys.executable).parent / "fedbary"), "simulate", *words]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    assert process.wait() == 0, shown.decode()
    text = shown.decode()
    assert re.search(r"round 2/2  (train|evaluate) \d of 3 clients", text), text
    assert re.search(r"round 2/2  accuracy", text) and "Results:" in text
    assert not any(words in text for words in OF_FLOWER), text


def _read(terminal):
    assert select.select([terminal], [], [], 300)[0], "nothing is said, and nothing ends"
    try:
        return os.read(terminal, 4096)
    except OSError:  # its other end is closed
        return b""
