"""What a command has started ends with it, even if nobody asks it to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from every_method import night
from processes import commands, is_free, marked, servers_of, wait_until

from fedbary.launching.watcher import MARK_VARIABLE, kill_marked
from fedbary.launching.watcher import marked as marked_by

BIN = Path(sys.executable).parent
STARTS = """
import sys, time
from fedbary.launching.watcher import start
sleeping = "import time; time.sleep(600)"
below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeping!r}])"
apart = start([sys.executable, "-c", below], start_new_session=True)
print(apart.pid, start([sys.executable, "-c", sleeping]).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("whom", ["the process", "its group"])
def test_a_kill_ends_all_that_was_started_whatever_session_it_is_in(whom):
    program = subprocess.Popen(
        [sys.executable, "-c", STARTS], stdout=subprocess.PIPE, start_new_session=True
    )
    apart, beside = map(psutil.Process, map(int, program.stdout.readline().split()))
    (below,) = wait_until(apart.children)
    mark = beside.environ()[MARK_VARIABLE]
    assert {process.pid for process in marked_by(mark)} >= {apart.pid, beside.pid, below.pid}
    if whom == "the process":
        program.kill()
    else:
        os.killpg(program.pid, signal.SIGKILL)
    program.communicate()
    _, alive = psutil.wait_procs([apart, beside, below], 20)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


HOLDS = """
import sys, time
from fedbary.launching.watcher import start, temporary_folder
with temporary_folder() as folder, temporary_folder() as other:
    (folder / "site0.key").write_text("a secret")
    (folder / "site0").mkdir()
    (folder / "site0" / "superlink.crt").touch()
    sleeping = f"import time; open({str(folder / 'log')!r}, 'a'); time.sleep(600)"
    start([sys.executable, "-c", sleeping])
    print(folder, other, flush=True)
    if sys.argv[1:] == ["stay"]:
        time.sleep(600)
"""


@pytest.mark.parametrize("ends", ["killed", "by itself"])
def test_of_its_temporary_folders_with_keys_nothing_is_left(ends, tmp_path):
    words = [sys.executable, "-c", HOLDS, *(["stay"] if ends == "killed" else [])]
    beside = tmp_path / "fedbary-another"
    beside.mkdir()
    program = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    folders = [Path(word) for word in program.stdout.readline().split()]
    assert len(folders) == 2 and all(folder.parent == tmp_path for folder in folders)
    if ends == "killed":
        assert folders[0].stat().st_mode & 0o077 == 0 and (folders[0] / "site0.key").exists()
        program.kill()
    program.communicate()
    wait_until(lambda: set(tmp_path.iterdir()) == {beside}, 30)


def test_who_has_another_mark_is_left_alone():
    others = [
        psutil.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE)
        for env in ({**os.environ, MARK_VARIABLE: "another"}, dict(os.environ))
    ]
    try:
        kill_marked("nobody's")
        assert all(process.poll() is None for process in others)
    finally:
        for process in others:
            process.kill()
            process.communicate()


@night  # by day: what is started bears the mark, whatever session it is in
@pytest.mark.slow
def test_a_killed_simulation_on_ray_leaves_nobody(tmp_path):
    words = ["clients=3", "rounds=500", "local_epochs=1", "samples=2", "output=run"]
    with open(tmp_path / "log", "w") as log:
        command = psutil.Popen(
            [str(BIN / "fedbary"), "simulate", *words], cwd=tmp_path, env=marked(tmp_path),
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        wait_until(lambda: list((tmp_path / "run").glob("checkpoint-0001*")), alive=command)
        assert any("raylet" in line for line in commands(command))
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        wait_until(lambda: not servers_of(tmp_path))
    wait_until(lambda: is_free(tmp_path / "run"), 20)
