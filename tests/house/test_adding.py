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
    before = {part.partition("=")[2] for part in registered(ROOT)}
    added = registered(copy) - registered(ROOT)
    newcomers = {part.partition("=")[2] for part in added}

    def listed(*marks):
        """The tests by the words in their brackets; those on real servers are left out."""
        words = ["-m", "pytest", *marks, "-p", "no:cacheprovider", "--collect-only", *names]
        lines = python(*words, cwd=copy).stdout.splitlines()
        return {
            test: set(re.split(r"\W+", test.partition("[")[2]))
            for test in lines
            if "::" in test and "real_servers" not in test
        }

    chosen = [
        test
        for test, words in listed("-m", "not slow").items()
        if not words & before and (words & newcomers or test.partition("[")[0] in reading)
    ]
    chosen += [
        test
        for test, words in listed().items()
        if words & newcomers and not words & before and test not in chosen
    ]
    for part in added:
        setting, _, name = part.partition("=")
        by_name = setting in ("rule", "inference", "method", "task")
        assert not by_name or any(name in test.partition("[")[2] for test in chosen), part
    (tmp_path / "tests").write_text("\n".join(chosen))
    words = ["-m", "pytest", "-p", "no:cacheprovider", f"@{tmp_path / 'tests'}"]
    done = python(*words, cwd=copy)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_they_run_by_their_names(copy):
    added = registered(copy) - registered(ROOT)
    by_setting = {word.partition("=")[0]: word for word in added}
    assert by_setting.keys() == {"rule", "dataset", "inference", "method", "model", "task"}
    common = [by_setting["dataset"], by_setting["model"], "engine=inline", "rounds=2", "clients=3"]
    runs = [[by_setting["inference"], word] for word in added if word.startswith("rule=")]
    runs.append([by_setting["method"]])
    for number, words in enumerate(runs):
        command = "from fedbary.launching.cli import main; main()"
        words = ["simulate", *common, "local_epochs=4", "bayesian_layers=1", *words]
        if by_setting["method"] in words:
            words.remove("bayesian_layers=1")
        done = python("-c", command, *words, f"output={number}", cwd=copy)
        assert done.returncode == 0, done.stderr
        assert (copy / str(number) / "posterior.safetensors").exists()


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
    command = "from fedbary.launching.cli import main; main()"
    for words in (["sweep", "grades.yaml", "--results", "graded"], ["report", "graded"]):
        done = python("-c", command, *words, cwd=copy)
        assert done.returncode == 0, done.stdout + done.stderr
        assert words[0] == "report" or done.stdout.count("  RPS 0.") == 4
    assert "| Ranked probability score |" in (copy / "graded" / "report.md").read_text()
