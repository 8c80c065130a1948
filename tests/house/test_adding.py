"""What is said of adding is enough: its examples are added to a copy, which stays green."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from every_method import NIGHT, night

from fedbary.settings.explain import parts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "adding.md").read_text(encoding="utf-8")
FOLDERS = ["client_app", "fedbary", "server_app", "strategies"]
READ_BY_TESTS = ["benchmarks", "docs", "examples", "findings", "tests"] if NIGHT else []
FILES = (
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "mkdocs.yml",
    "pyproject.toml", "simulation.yaml",
)  # fmt: skip
REGISTRIES = re.compile(r"\b(RULES|INFERENCE|METHODS|TASKS|EACH|KINDS|names\(\)|modules\(\"models)")

COMMANDS = """
import json, sys
from fedbary.commands.cli import main
from fedbary.settings.explain import parts

print(*(f"{part.setting}={part.name}" for part in parts()), flush=True)
for words in json.load(sys.stdin):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
"""Tells every part that `fedbary explain` lists, as setting=name; then runs commands."""

TAKES_IN = """
import json, pathlib, re


def pytest_addoption(parser):
    parser.addoption("--wanted")


def pytest_collection_modifyitems(config, items):
    wanted = json.loads(pathlib.Path(config.getoption("--wanted")).read_text())

    def is_chosen(item):
        test, _, brackets = item.nodeid.partition("[")
        words = set(re.split(r"\\W+", brackets))
        if words.intersection(wanted["before"]):
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
    for part in FOLDERS + READ_BY_TESTS:
        shutil.copytree(ROOT / part, folder / part)
    for part in FILES:
        shutil.copy(ROOT / part, folder)
    blocks = re.findall(r"```python\n# (fedbary/\S+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert sorted(Path(name).parent.name for name, _ in blocks) == [
        *["aggregation"] * 3, "attacks", "images", "inference", "methods", "models", "predictive",
        "sources", "tables", "tracking",
    ]  # fmt: skip
    for name, text in blocks:
        assert not (folder / name).exists()
        (folder / name).write_text(text)
    (grades,) = re.findall(r"```python\n# grades.py\n(.*?)```", PAGE, re.DOTALL)
    (folder / "grades.py").write_text(grades)
    lines = re.findall(r"```\w+\n# (\S+), after (\w+)\n(.*?)```", PAGE, re.DOTALL)
    for name, place, line in lines:
        text = (folder / name).read_text(encoding="utf-8")
        after = re.search(rf"^ *{place}: .*\n", text, re.MULTILINE).end()
        (folder / name).write_text(text[:after] + line + text[after:])
    return folder


@contextmanager
def python(*words, cwd, **files):
    environment = {**os.environ, "PYTHONPATH": str(cwd), "FEDBARY_EVERY_METHOD": "1"}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, *words]
    with subprocess.Popen(command, cwd=cwd, env=environment, **pipe, **files) as started:
        yield started
        started.kill()


BEFORE = {f"{part.setting}={part.name}" for part in parts()}


@pytest.fixture(scope="module")
def commands(copy):
    """A process that runs commands in the copy."""
    with python("-c", COMMANDS, cwd=copy, stdin=subprocess.PIPE) as started:
        yield started


@pytest.fixture(scope="module")
def added(commands):
    """The parts of the copy that the repository lacks."""
    return set(commands.stdout.readline().split()) - BEFORE


def readers(file):
    """The names of a file's tests that read a registry themselves."""
    functions = (n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef))
    return {f.name for f in functions if REGISTRIES.search(ast.unparse(f))}


@night
@pytest.mark.timeout(3000)
def test_every_test_that_reads_a_registry_stays_green(copy, added, tmp_path):
    """In the copy these tests take in the newcomers by their names alone.

    Those of parts that were there before, and those that read no registry, are run by the suite
    itself, and left out here. By day the newcomers run, in the test below.
    """
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [file for file in files if REGISTRIES.search(file.read_text())]
    files = [file for file in files if file.parent.name != "launching"]  # they start servers
    names = [str(file.relative_to(ROOT)) for file in files]
    reading = {
        f"{name}::{test}" for file, name in zip(files, names, strict=True) for test in readers(file)
    }
    wanted = {
        "reading": sorted(reading),
        "before": [part.partition("=")[2] for part in BEFORE],
        "newcomers": [part.partition("=")[2] for part in added],
    }
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    (copy / "takes_in.py").write_text(TAKES_IN)
    words = ["-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", "takes_in"]
    with python(*words, "--wanted", str(tmp_path / "wanted.json"), *names, cwd=copy) as tests:
        said, errors = tests.communicate(timeout=3000)
    assert tests.returncode == 0, said[-5000:] + errors[-2000:]
    for part in added:
        setting, _, name = part.partition("=")
        by_name = setting in ("rule", "inference", "method")
        assert not by_name or re.search(rf"\[.*\b{name}\b.*PASSED", said), part


def test_they_run_by_their_names_and_a_task_has_its_scores_in_the_log_and_in_a_report(
    copy, commands, added
):
    of = {part.partition("=")[0]: part.partition("=")[2] for part in added}
    assert of.keys() == {
        "rule", "dataset", "inference", "attack", "method", "model", "predictive", "tracker",
    }  # fmt: skip
    assert added >= {"dataset=bars", "dataset=moons"}
    rules = [part.partition("=")[2] for part in added if part.startswith("rule=")]
    short = {"engine": "inline", "pictures": False, "rounds": 1, "clients": 3, "local_epochs": 2}
    own = {"dataset": "bars", "model": of["model"]}
    told = {"task": "grades:Grades", "tracker": of["tracker"], "decimals": 2, "note": "a try"}
    hostile = {"attack": of["attack"], "blur": 0.5, "hostile_fraction": 0.4}
    passes = {"predictive": of["predictive"], "jitter_std": 0.2, "bayesian_layers": 0}
    blocks = [
        {**own, "rule": rules, "inference": of["inference"], "cool": 0.5, "bayesian_layers": 1},
        {**own, "rule": "PowerMean", "power": 0.5, "bayesian_layers": 1},
        {**own, "method": of["method"]},
        {**own, **passes, "rule": "FedAvg"},
        {**own, **hostile, "bayesian_layers": 1},
        {**told, "dataset": "moons", "split": [0, 1]},
        {**told, "dataset": "sklearn:wine"},
    ]
    (copy / "grid.yaml").write_text(json.dumps({"settings": short, "grid": blocks}))
    words = [
        ["sweep", "grid.yaml", "--results", "made", "--jobs", "1"],
        ["report", "made", "--own-code"],
    ]
    said, errors = commands.communicate(json.dumps(words), timeout=600)
    assert commands.returncode == 0, said + errors
    assert len(list(copy.glob("made/runs/*/posterior.safetensors"))) == len(rules) + 7
    assert said.count("  RPS 0.") == 3
    runs = [file.parent / "settings.yaml" for file in copy.glob("made/runs/*/lines.txt")]
    assert len(runs) == 3
    assert all("note: a try" in run.read_text() for run in runs)
    written = (runs[0].parent / "lines.txt").read_text().splitlines()
    assert all(re.fullmatch(r"\d+ -?\d+\.\d\d", line) for line in written)
    assert "| Ranked probability score |" in (copy / "made" / "report.md").read_text()
