"""What is released is whole: the command works from the wheel alone, in an empty folder."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from every_method import night

import fedbary
from fedbary.launching.app import write_app

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["clients=2", "rounds=1", "local_epochs=1", "samples=2"]


def test_the_version_is_the_same_wherever_it_stands():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert project["version"] == cited["version"] == fedbary.__version__ == newest[1]
    assert str(cited["date-released"]) == newest[2]


@pytest.mark.slow
def test_an_index_would_take_it(released):
    files = sorted(map(str, released.iterdir()))
    assert [Path(file).suffix for file in files] == [".whl", ".gz"]
    check = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(check, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_wheel_writes_the_app_that_a_clone_writes(environment, tmp_path):
    done = command_of_the_wheel(environment, "app", "mine", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == f"Flower app: {tmp_path / 'mine'}\n", done
    mine, ours = (
        {file.relative_to(app): file.read_bytes() for file in app.rglob("*") if file.is_file()}
        for app in (tmp_path / "mine", write_app(tmp_path / "ours"))
    )
    assert mine == ours


@night  # by day a foreign project runs with the wheel, and an index would take it
@pytest.mark.slow
def test_a_sweep_and_its_report_need_no_clone(environment, tmp_path):
    """Some 15 seconds."""
    grid = {"settings": dict(word.split("=") for word in QUICK), "grid": [{"rule": ["RKLB", "WB"]}]}
    (tmp_path / "mine.yaml").write_text(json.dumps(grid))
    for words in (
        ["sweep", "mine.yaml", "engine=inline", "--results", "found", "--jobs", "1"],
        ["report", "found"],
    ):
        done = command_of_the_wheel(environment, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "found" / "report.html").exists()
    (run,) = (tmp_path / "found" / "runs").glob("*RKLB*")
    assert yaml.safe_load((run / "settings.yaml").read_text())["commit"] == "unknown"


def test_without_its_extra_the_command_says_what_to_install(tmp_path):
    without = "import sys; sys.modules['psutil'] = None"
    command = f"{without}; from fedbary.commands.command import main; main()"
    run = [sys.executable, "-c", command, "simulate"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "psutil" in line and line.endswith("pip install 'fedbary[simulation]'")


def command_of_the_wheel(environment, *words, cwd, **variables):
    """Run `fedbary` as the wheel has installed it."""
    return subprocess.run(
        [str(environment.parent / "fedbary"), *words],
        cwd=cwd, env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), **variables},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
