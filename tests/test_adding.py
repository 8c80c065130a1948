"""What the README says of adding is enough: its examples are added to a copy, which stays green."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedbary.aggregation import RULES
from fedbary.data import names
from fedbary.inference import INFERENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = (
    "benchmarks", "client_app", "examples", "experiments", "fedbary", "results", "server_app",
    "strategies", "tests",
)  # fmt: skip
FILES = ("LICENSE", "README.md", "pyproject.toml", "simulation.yaml")
REGISTRIES = re.compile(r"\b(RULES|INFERENCE|names\(\))")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository with every file that the README shows how to add."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "runs")
    for part in FOLDERS:
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    for part in FILES:
        shutil.copy(ROOT / part, folder)
    _, _, section = README.partition("## Adding to it")
    blocks = re.findall(r"```python\n# (fedbary/\S+\.py)\n(.*?)```", section, re.DOTALL)
    assert sorted(Path(name).parent.name for name, _ in blocks) == [
        "aggregation", "aggregation", "data", "inference",
    ]  # fmt: skip
    for name, text in blocks:
        assert not (folder / name).exists()
        (folder / name).write_text(text)
    return folder


def python(*words, cwd):
    environment = {**os.environ, "PYTHONPATH": str(cwd), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip


def test_every_test_that_reads_a_registry_stays_green(copy):
    """In the copy these tests take in the newcomers by their names alone."""
    files = sorted((ROOT / "tests").glob("test_*.py"))
    files = [file.name for file in files if REGISTRIES.search(file.read_text())]
    words = ["-m", "not slow", "-p", "no:cacheprovider", *(f"tests/{name}" for name in files)]
    done = python("-m", "pytest", *words, cwd=copy)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_they_run_by_their_names(copy):
    listing = (
        "from fedbary.aggregation import RULES; from fedbary.data import names;"
        "from fedbary.inference import INFERENCE; print(*RULES, *names(), *INFERENCE)"
    )
    everything = python("-c", listing, cwd=copy).stdout.split()
    added = [name for name in everything if name not in (*RULES, *names(), *INFERENCE)]
    first, second, data_set, method = added
    for rule in (first, second):
        settings = {
            "rule": rule, "dataset": data_set, "inference": method, "engine": "inline",
            "rounds": 2, "clients": 3, "local_epochs": 4, "output": rule,
        }  # fmt: skip
        words = [f"{key}={value}" for key, value in settings.items()]
        command = "from fedbary.cli import main; main()"
        done = python("-c", command, "simulate", *words, cwd=copy)
        assert done.returncode == 0, done.stderr
        assert (copy / rule / "posterior.safetensors").exists()
