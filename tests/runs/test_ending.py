"""A process that Flower started for another ends with that one, even while it waits for ever."""

import subprocess
import sys

import pytest

WAITING = """
import threading
from fedbary.runs import ending

ending.GRACE_SECONDS = 0.1
ending.end_with_parent()
print("waits", flush=True)
threading.Event().wait({seconds})
"""


def waiting(seconds, *words):
    program = WAITING.format(seconds=seconds)
    process = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"waits\n"
    return process


@pytest.mark.parametrize("reaped", [True, False], ids=["gone", "a zombie"])
def test_it_ends_after_what_it_was_started_for(reaped):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with waiting("None", "--insecure", "--parent-pid", str(other.pid)) as process, other:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        other.kill()
        if reaped:
            other.wait()
        assert process.wait(20) == 1


@pytest.mark.parametrize("words", [[], ["--token", "7"]])
def test_without_one_it_ends_by_itself(words):
    with waiting("0.5", *words) as process:
        assert process.wait(20) == 0
