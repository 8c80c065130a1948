"""The apps run where `flwr run` has installed them: Flower's simulation and their dependencies."""

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from installed import closure, named

ROOT = Path(__file__).resolve().parents[2]

RUNS = """
import sys
from pathlib import Path


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


absent, folder = set(sys.argv[2].split()), Path(sys.argv[1])
sys.meta_path.insert(0, Absent())
from fedbary import client_app, server_app
from fedbary.settings.config import resolve
from fedbary.server_app.engine.inline import run_inline

quick = {"engine": "inline", "clients": 2, "rounds": 1, "local_epochs": 1, "samples": 2}
table = {"task": "tables", "dataset": str(folder / "rows.csv"), "target": "y", "clients": 2}
for name, words in {
    "digits": {},
    "folder": {"dataset": str(folder / "images"), "input_shape": "1x8x8"},
    "table": table,
    "regression": {"task": "regression", "dataset": "diabetes"},
}.items():
    run_inline(resolve({**quick, **words}), folder / name)
"""


@pytest.mark.slow
def test_both_apps_import_no_more_than_their_dependencies(tmp_path):
    there = closure("flwr[simulation]", apart=frozenset())
    assert "ray" in there and "torchvision" not in there
    packages = packages_distributions()
    absent = [p for p, of in packages.items() if not there & {*map(named, of)} and p != "fedbary"]
    assert {"torchvision", "psutil", "datasets", "transformers"} <= {*absent}
    (tmp_path / "rows.csv").write_text(
        "a,b,y\n" + "".join(f"{k % 7}.5,{k % 3},{k % 2}\n" for k in range(60))
    )
    _images(tmp_path / "images")
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path), " ".join(absent)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not drawn" not in done.stderr
    for name in ("digits", "folder", "table", "regression"):
        assert (tmp_path / name / "posterior.safetensors").exists()
        assert (tmp_path / name / "learning-curves.png").exists()


def _images(folder):
    import numpy as np
    from PIL import Image

    for number in range(60):
        place = folder / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 8), number * 4, np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
