"""A run's process is killed: the command says so; a sweep's run ends too, and then goes on."""

import subprocess
import sys
import threading

import psutil
import pytest
import yaml
from processes import wait_until
from rich.console import Console
from runs_of import SHORT

from fedbary.launching import sweep as study
from fedbary.launching.launch import launch
from fedbary.launching.programs import Killed
from fedbary.settings.config import resolve
from fedbary.study.grid import read_experiment

SETTINGS = {**SHORT, "clients": 2, "rounds": 12, "evaluate_clients": 0, "train_fraction": 0.3}


def test_a_killed_program_is_called_killed(tmp_path):
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    with pytest.raises(Killed, match="signal 9 killed the run, as .* memory"):
        launch(
            resolve({"output": str(tmp_path / "run")}),
            simulate=lambda _: subprocess.run(killed).returncode,
        )


@pytest.mark.slow
def test_a_sweep_goes_on_with_the_run_whose_process_was_killed(tmp_path):
    failed = []
    content = {"title": "T", "about": "A.", "settings": SETTINGS, "grid": [{"seed": 0}]}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(content))
    grid = read_experiment(tmp_path / "grid.yaml", {}, {})
    results = study.SweepFolder.open(tmp_path / "results", grid)
    (name,) = grid.runs

    def sweep():
        failed.append(study.sweep(grid, results, 1, Console(quiet=True)))

    life = threading.Thread(target=sweep)
    life.start()
    wait_until(lambda: list(results.folder(name).glob("checkpoint-*")))
    (forking,) = (p for p in psutil.Process().children() if "forkserver" in str(p.cmdline()))
    (run,) = forking.children()
    forking.kill()
    assert not psutil.wait_procs([run], 20)[1]
    life.join()
    assert failed == [{}]
    note = yaml.safe_load((results.folder(name) / "settings.yaml").read_text())
    assert len(note["resumed"]) == 1
