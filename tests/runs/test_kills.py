"""Killed at random moments, again and again, runs end with the bytes of the uninterrupted one.

`FEDBARY_KILLS` sets the budget: that many kills of a run's process, a fifth of it of the command;
by night a tenth of sweeps, a fiftieth of real servers. By day tests/study and tests/launching have
one kill of each.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import forked
import psutil
import pytest
import yaml
from every_method import NIGHT, night
from processes import MARK, ran, servers_of, wait_until
from runs_of import SHORT, timeless_lines

from fedbary.launching.deploy import lab, partition_configs
from fedbary.launching.launch import validate_run
from fedbary.launching.warm import run_warm
from fedbary.settings.config import resolve

pytestmark = pytest.mark.slow

PATIENCE = 600  # seconds for which a busy machine may take to start what is to be killed
BUDGET = int(os.environ.get("FEDBARY_KILLS", "3"))
SMALL = {
    **SHORT, "clients": 2, "rounds": 4, "server_momentum": 0.5, "participation": 0.5, "prior":
    "global", "batch_size": 128, "evaluate_clients": 2,
}  # fmt: skip
WORDS = [f"{key}={value}" for key, value in SMALL.items()]


def fedbary():
    """The command; by day in a fork, which ends with it."""
    return str(Path(sys.executable).parent / "fedbary") if NIGHT else forked.command()


@pytest.fixture
def chance():
    seed = int(os.environ.get("FEDBARY_SEED", time.time_ns() % 10**6))
    print(f"FEDBARY_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing interrupts, and the seconds for which it wrote."""
    folder = tmp_path_factory.mktemp("whole")
    ran(fedbary(), "simulate", *WORDS, "output=run", cwd=folder)
    times = [file.stat().st_mtime for file in (folder / "run").iterdir()]
    return folder / "run", max(times) - min(times)


def same(one, other):
    """Whether two runs ended with the same bytes and measured the same."""
    posteriors = [(folder / "posterior.safetensors").read_bytes() for folder in (one, other)]
    return posteriors[0] == posteriors[1] and timeless_lines(one) == timeless_lines(other)


def kill(processes):
    """Kill processes at once; return whether any was still at work."""
    alive = [process for process in processes if process.is_running()]
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, 30)
    return bool(alive)


def forks():
    """The runs that have been forked; the watcher, a child that soon ends, stays."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "forkserver" in str(child.cmdline()):
                found += child.children(recursive=True)
    return found


@night  # by day the command, and each moment in tests/runs/test_every_moment
def test_a_run_s_process(whole, chance, tmp_path):
    reference, seconds = whole
    file, killed, runs = tmp_path / "settings.yaml", 0, 0
    while killed < BUDGET:
        folder = tmp_path / f"run{runs}"
        chosen = resolve({**SMALL, "output": str(folder), "resume": "last"})
        file.write_text(yaml.safe_dump(chosen.model_dump()))
        with open(tmp_path / "log", "w+") as log:
            life = threading.Thread(target=run_warm, args=[file, log])
            life.start()
            wait_until(lambda life=life: not life.is_alive() or forks())
            time.sleep(chance.uniform(0, 0.8 * seconds))
            killed += kill(forks())
            life.join()
        if (folder / "posterior.safetensors").exists():
            assert same(folder, reference), (tmp_path / "log").read_text()
            shutil.rmtree(folder)
            runs += 1
    print(f"{killed} kills, {runs} runs ended")


def test_the_command(whole, chance, tmp_path):
    reference, seconds = whole
    killed, starts, most, folder = 0, 0, max(2, BUDGET // 5), tmp_path / "run"
    lock = folder / ".lock"
    while killed < most or folder.exists():
        starts += 1
        assert starts < 10 * most, (tmp_path / "log").read_text()
        going = (folder / "settings.yaml").exists()
        command = ["resume", "run"] if going else ["simulate", *WORDS, "output=run"]
        with open(tmp_path / "log", "w") as log:
            process = subprocess.Popen(
                [fedbary(), *command], cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
            )
        lock.unlink(missing_ok=True)
        if killed < most:
            if chance.random() < 0.8:
                wait_until(lambda p=process: lock.exists() or p.poll() is not None, PATIENCE)
            time.sleep(chance.uniform(0, 0.8 * seconds))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                killed += 1
        process.wait()
        if (folder / "posterior.safetensors").exists():
            assert same(folder, reference), (tmp_path / "log").read_text()
            shutil.rmtree(folder)
    print(f"{killed} kills")


@night
def test_a_sweep(whole, chance, tmp_path):
    reference, seconds = whole
    content = {"title": "T", "about": "A.", "settings": SMALL, "grid": [{"seed": [0, 1]}]}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(content))
    words = ["sweep", "grid.yaml", "--jobs", "2", "--results"]
    subprocess.run([forked.command(), *words, "whole"], cwd=tmp_path, timeout=600, check=True)
    assert same(tmp_path / "whole" / "runs" / "digits-RKLB-n3-seed0", reference)
    killed = 0
    while killed < max(1, BUDGET // 10):
        runs = tmp_path / f"killed{killed}" / "runs"
        with open(tmp_path / "log", "w") as log:
            sweep = psutil.Popen(
                [fedbary(), *words, f"killed{killed}"], cwd=tmp_path, stdout=log, stderr=log
            )
        wait_until(lambda runs=runs: list(runs.glob("*/metrics.jsonl")), PATIENCE)
        time.sleep(chance.uniform(0, 3 * seconds))
        if kill([sweep, *sweep.children(recursive=True)]):
            killed += 1
        again = [forked.command(), *words, runs.parent.name]
        subprocess.run(again, cwd=tmp_path, timeout=600, check=True)
        for run in (tmp_path / "whole" / "runs").iterdir():
            assert same(runs / run.name, run)
        shutil.rmtree(runs.parent)
    print(f"{killed} kills")


@night
def test_real_servers(whole, chance, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", os.path.join(forked.tools(), "python"))
    monkeypatch.setenv(MARK, str(tmp_path))
    (tmp_path / "lab").mkdir()
    folder, lock = tmp_path / "run", tmp_path / "run" / ".lock"
    chosen = validate_run(resolve({**SMALL, "resume": "last", "output": str(folder)}), folder)
    killed, most = 0, max(1, BUDGET // 50)
    with lab(tmp_path / "lab", partition_configs(chosen)) as federation:
        while killed < most or not (folder / "posterior.safetensors").exists():
            lock.unlink(missing_ok=True)
            if (folder / "posterior.safetensors").exists():
                shutil.rmtree(folder)
            life = threading.Thread(target=federation.run, args=[chosen])
            life.start()
            if killed < most:
                due = chance.choice([lock, folder / "checkpoint-0001.safetensors"])
                wait_until(lambda life=life, due=due: due.exists() or not life.is_alive(), PATIENCE)
                servers = servers_of(tmp_path)
                killed += kill([s for s in servers if "flwr-serverapp" in " ".join(s.cmdline())])
            life.join()
    assert same(folder, whole[0])
    print(f"{killed} kills")
