"""What is said of adding is enough: its examples are added to a copy, which stays green."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "adding.md").read_text(encoding="utf-8")
FOLDERS = (
    "benchmarks", "client_app", "docs", "examples", "experiments", "fedbary", "results",
    "server_app", "strategies", "tests",
)  # fmt: skip
FILES = (
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "mkdocs.yml",
    "pyproject.toml", "simulation.yaml",
)  # fmt: skip
REGISTRIES = re.compile(r"\b(RULES|INFERENCE|METHODS|TASKS|names\(\)|modules\(\"models)")

COMMAND = "from fedbary.launching.cli import main; main()"
TAKES_IN = """
import json, pathlib, re


def pytest_addoption(parser):
    parser.addoption("--wanted")


def pytest_collection_modifyitems(config, items):
    wanted = json.loads(pathlib.Path(config.getoption("--wanted")).read_text())

    def is_chosen(item):
        test, _, brackets = item.nodeid.partition("[")
        words = set(re.split(r"\\W+", brackets))
        if words.intersection(wanted["before"]) or "real_servers" in test:
            return False
        is_quick = item.get_closest_marker("slow") is None
        return words.intersection(wanted["newcomers"]) or is_quick and test in wanted["reading"]

    items[:] = filter(is_chosen, items)
"""
"""A plugin: what takes in the newcomers is run, in one collection."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository with every file that the page shows how to add."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    for part in FOLDERS:
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    for part in FILES:
        shutil.copy(ROOT / part, folder)
    blocks = re.findall(r"```python\n# (fedbary/\S+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert sorted(Path(name).parent.name for name, _ in blocks) == [
        "aggregation", "aggregation", "images", "inference", "limits", "methods", "models",
        "tasks",
    ]  # fmt: skip
    for name, text in blocks:
        assert not (folder / name).exists()
        (folder / name).write_text(text)
    (defaults,) = re.findall(r"```yaml\n# simulation.yaml, under tasks\n(.*?)```", PAGE, re.DOTALL)
    settings = (folder / "simulation.yaml").read_text(encoding="utf-8")
    (folder / "simulation.yaml").write_text(settings.replace("\ntasks:\n", f"\ntasks:\n{defaults}"))
    return folder


def python(*words, cwd):
    environment = {**os.environ, "PYTHONPATH": str(cwd), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip


def registered(cwd):
    """Every part that `fedbary explain` lists, as setting=name."""
    of = "import parts; print(*(f'{p.setting}={p.name}' for p in parts()))"
    return set(python("-c", f"from fedbary.settings.explain {of}", cwd=cwd).stdout.split())


def readers(file):
    """The names of a file's tests that read a registry themselves."""
    functions = (n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef))
    return {f.name for f in functions if REGISTRIES.search(ast.unparse(f))}


def test_every_test_that_reads_a_registry_stays_green(copy, tmp_path):
    """In the copy these tests take in the newcomers by their names alone.

    Those of parts that were there before, and those that read no registry, are run by the suite
    itself, and left out here.
    """
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [file for file in files if REGISTRIES.search(file.read_text())]
    names = [str(file.relative_to(ROOT)) for file in files]
    reading = {
        f"{name}::{test}" for file, name in zip(files, names, strict=True) for test in readers(file)
    }
    added = registered(copy) - registered(ROOT)
    wanted = {
        "reading": sorted(reading),
        "before": [part.partition("=")[2] for part in registered(ROOT)],
        "newcomers": [part.partition("=")[2] for part in added],
    }
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    (copy / "takes_in.py").write_text(TAKES_IN)
    words = ["-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", "takes_in"]
    done = python(*words, "--wanted", str(tmp_path / "wanted.json"), *names, cwd=copy)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    for part in added:
        setting, _, name = part.partition("=")
        by_name = setting in ("rule", "inference", "method", "task")
        assert not by_name or re.search(rf"\[.*\b{name}\b.*PASSED", done.stdout), part


def test_they_run_by_their_names(copy):
    added = registered(copy) - registered(ROOT)
    of = {part.partition("=")[0]: part.partition("=")[2] for part in added}
    assert of.keys() == {"rule", "dataset", "inference", "method", "model", "task"}
    rules = [part.partition("=")[2] for part in added if part.startswith("rule=")]
    settings = {
        "dataset": of["dataset"], "model": of["model"], "engine": "inline", "pictures": False,
        "rounds": 2, "clients": 3, "local_epochs": 4,
    }  # fmt: skip
    blocks = [
        {"rule": rules, "inference": of["inference"], "bayesian_layers": 1},
        {"method": of["method"]},
    ]
    (copy / "names.yaml").write_text(json.dumps({"settings": settings, "grid": blocks}))
    done = python("-c", COMMAND, "sweep", "names.yaml", "--results", "named", cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    posteriors = list(copy.glob("named/runs/*/posterior.safetensors"))
    assert len(posteriors) == len(rules) + 1


def test_a_task_that_is_added_has_its_scores_in_the_log_and_in_a_report(copy):
    grid = {
        "settings": {
            "task": "grades",
            "engine": "inline",
            "pictures": False,
            "rounds": 1,
            "local_epochs": 2,
        },
        "grid": [{"rule": ["RKLB", "WB"], "split": [0, 1]}],
    }
    (copy / "grades.yaml").write_text(json.dumps(grid))
    for words in (["sweep", "grades.yaml", "--results", "graded"], ["report", "graded"]):
        done = python("-c", COMMAND, *words, cwd=copy)
        assert done.returncode == 0, done.stdout + done.stderr
        assert words[0] == "report" or done.stdout.count("  RPS 0.") == 4
    assert "| Ranked probability score |" in (copy / "graded" / "report.md").read_text()
