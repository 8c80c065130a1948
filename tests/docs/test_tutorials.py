"""The tutorials run from top to bottom, each in an empty folder; what they assert holds."""

import os
import sys
from pathlib import Path

import forked
import nbformat
import pytest
from every_method import NIGHT
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted(ROOT.glob("docs/tutorials/*.ipynb"))
BY_NIGHT = (
    "first-federation", "is-it-calibrated", "one-round", "reproduce-the-paper", "texts",
    "risk-factors", "your-own-model", "your-own-sites",
)  # fmt: skip
"""Those that take a minute of two cores; their commands are run by other tests, too."""
SHORTER = {
    "rounds: 5": "rounds: 1, clients: 3", "rounds=5": "rounds=1", "rounds=4": "rounds=1",
    "round 4/4": "round 1/1", "rounds=12": "rounds=4", "round 12/12": "round 4/4",
    "rounds=10": "rounds=4",
}  # fmt: skip
"""What by day stands in the place of long runs, one after the other."""


@pytest.mark.filterwarnings("default")  # those of Jupyter's own parts
@pytest.mark.parametrize(
    "notebook",
    [n for n in TUTORIALS if NIGHT or n.stem not in BY_NIGHT],
    ids=lambda path: path.stem,
)
def test_a_tutorial_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBARY_CLONE", str(ROOT))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "fedbary").symlink_to(forked.command())
    paths = map(str, (tools, Path(sys.executable).parent, os.environ["PATH"]))
    monkeypatch.setenv("PATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = notebook.read_text(encoding="utf-8")
    for long, short in () if NIGHT else SHORTER.items():
        text = text.replace(long, short)
    cells = nbformat.reads(text, as_version=4)
    NotebookClient(cells, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_the_tutorials_are_stored_with_what_they_print():
    for notebook in TUTORIALS:
        for cell in nbformat.read(notebook, as_version=4).cells:
            said = str(cell.get("outputs", ""))
            assert "Traceback" not in said and "/tmp/" not in said, notebook.name
        assert any(cell.get("outputs") for cell in nbformat.read(notebook, as_version=4).cells)
