"""Every command of the documentation is run, or says who runs it, or why nobody does.

A block of shell lines is run here unless a comment stands before it: `<!-- run by FILE -->`, or
`<!-- not run: REASON -->`. Each page has a folder with what its commands speak of.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pandas as pd
import pytest
from every_method import NIGHT
from PIL import Image
from sklearn.datasets import load_digits

from fedbary.settings.config import parse_overrides, resolve

ROOT = Path(__file__).resolve().parents[2]
OF_THE_APP = ROOT / "fedbary" / "launching" / "app.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", OF_THE_APP]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?```(?:bash|sh|shell|console)\n(.*?)```", re.DOTALL)


def blocks(page):
    """The shell blocks of a page, each with the comment before it."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def runs(text):
    """The words of every simulation and deployment that a block starts."""
    for words in re.findall(r"\bfedbary (?:simulate|deploy)\b(.*)", text.replace("\\\n", " ")):
        yield shlex.split(words, comments=True)


OURS = {
    page.relative_to(ROOT).as_posix(): script
    for page in PAGES
    if (script := "\n".join(text for mark, text in blocks(page) if not mark))
}


def test_a_block_that_is_not_run_here_says_why():
    assert len(OURS) > 5
    for page in PAGES:
        for mark, text in blocks(page):
            kind, _, said = mark.partition("run by " if mark.startswith("run by ") else "not run: ")
            assert not mark or (not kind and said), (page, mark, text)
            assert not mark.startswith("run by ") or (ROOT / said).is_file(), (page, mark)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_settings_in_a_page_s_commands_exist_and_have_a_use(page):
    """What takes hours is understood at least."""
    for _, text in blocks(page):
        for words in runs(text):
            resolve(parse_overrides([word for word in words if "=" in word]))


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    """A `fedbary` whose simulations are short, and a folder with what commands speak of."""
    tools = tmp_path_factory.mktemp("tools")
    (tools / "fedbary").symlink_to(forked.command("short_fedbary"))
    desk = tmp_path_factory.mktemp("desk")
    rng = np.random.default_rng(0)
    age, pulse = rng.normal(60, 10, 120).round(1), rng.normal(80, 9, 120).round(1)
    patients = pd.DataFrame({"age": age, "pulse": pulse, "sex": rng.choice(["f", "m"], 120)})
    patients["outcome"] = np.where(age + pulse > 140, "died", "lived")
    patients.to_csv(desk / "patients.csv", index=False)
    visits = patients.assign(patient=np.arange(120) // 3)
    visits.to_csv(desk / "visits.csv", index=False)
    patients.drop(columns="outcome").head(9).to_csv(desk / "new.csv", index=False)
    patients.tail(50).to_csv(desk / "ward7.csv", index=False)
    houses = pd.DataFrame({"rooms": age, "price": 3 * age + pulse})
    houses.to_csv(desk / "houses.csv", index=False)
    (desk / "mine.yaml").write_text("rounds: 1\n")
    (desk / "scans").mkdir()
    for number, image in enumerate(load_digits().images[:20]):
        Image.fromarray((image * 15).astype(np.uint8)).save(desk / "scans" / f"{number}.png")
    for number in range(100):
        folder, side = desk / "photos" / ("cats", "dogs")[number % 2], 33 + number % 9
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (side, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", start(), re.DOTALL):
        (desk / name).write_text(text)
    (desk / "findings").symlink_to(ROOT / "findings")
    tables = "task=tables dataset=patients.csv target=outcome"
    for words in ("output=runs/digits", f"{tables} output=runs/patients"):
        shell(f"mkdir -p runs; fedbary simulate {words}", desk, tools)
    return desk, tools


def start():
    return (ROOT / "docs" / "start.md").read_text(encoding="utf-8")


def shell(script, folder, tools):
    """Run lines as a reader would, until one fails."""
    paths = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder, env={**os.environ, "PATH": paths},
        capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


BY_NIGHT = {
    *("docs/howto/asynchronous.md", "docs/howto/bytes.md", "docs/howto/conformal.md"),
    *("docs/howto/experiments.md", "docs/howto/hostile.md"),
    *("docs/howto/predict.md", "docs/howto/regression.md", "docs/howto/tables.md"),
    *("docs/methods/index.md", "docs/settings.md"),
}
"""By day tests/apps runs each method, tests/test_attacks each attack and tests/tasks each task.

What these pages' commands say is understood by day, and tests/apps runs what they speak of.
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in OURS if NIGHT or page not in BY_NIGHT])
def test_a_page_s_commands_run_in_their_order(page, bench, tmp_path):
    desk, tools = bench
    subprocess.run(["cp", "-a", f"{desk}/.", tmp_path], check=True)
    shell(OURS[page], tmp_path, tools)
