"""The app that `fedbary app` writes runs where Flower alone is installed, with its dependencies."""

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import numpy as np
import pytest
from every_method import NIGHT
from installed import closure, named
from PIL import Image
from superlinks import superlink

from fedbary.launching.app import write_app
from fedbary.launching.environment import flower_environment
from fedbary.runs.location import read_rounds, read_settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The commands of an environment with Flower's simulation and the app's dependencies alone.

    It has links to what these distributions have brought to this environment.
    """
    venv = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = (venv / "lib").glob("python*/site-packages")
    there = closure("flwr[simulation]", apart=frozenset())
    packages = packages_distributions()
    shared = {name for name, of in packages.items() if {*map(named, of)} - there}
    for held in map(distribution, there):
        for line in held.read_text("RECORD").splitlines():
            path = Path(line.split(",")[0])
            top = path.parts[0]
            linked = path if top in shared else Path(top)
            place, file = site / linked, Path(held.locate_file(linked))
            if top != ".." and file.exists() and not place.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(file)
    for command in distribution("flwr").entry_points:
        script = venv / "bin" / command.name
        lines = [f"#!{venv}/bin/python", f"from {command.module} import {command.attr} as command"]
        script.write_text("\n".join([*lines, "command()", ""]))
        script.chmod(0o755)
    return venv / "bin"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return write_app(tmp_path_factory.mktemp("apps") / "my-app")


def test_nothing_else_is_there(alone):
    names = ["flwr", "ray", "torch", "fedbary", "torchvision", "psutil", "datasets", "pytest"]
    program = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    done = subprocess.run(
        [alone / "python", "-c", program], cwd=alone, env={}, capture_output=True, check=True
    )
    assert done.stdout == b"['flwr', 'ray', 'torch']\n"


def words_of(app, place):
    """The words of each `flwr run` of the app's README, those after `flwr`."""
    text = (app / "README.md").read_text().replace("$PWD", str(place))
    return [shlex.split(line)[1:] for line in re.findall(r"^flwr run .*", text, re.MULTILINE)]


@pytest.fixture
def environment(alone, tmp_path):
    """The variables of a process that knows nothing of this environment."""
    held = flower_environment(tmp_path)
    flower = {name: held[name] for name in held if name.startswith(("FLWR_", "RAY_"))}
    paths = os.pathsep.join([str(alone), "/usr/bin", "/bin"])
    return {**flower, "PATH": paths, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}


def test_flwr_run_as_the_app_s_readme_says(alone, app, environment, tmp_path):
    """By day the first line, and by night all; rounds are short, and but one in the first."""
    first, second, third = words_of(app, tmp_path)
    lines = [[*first, "--run-config", "rule='WB' rounds=1"], second, third]
    with superlink(environment, tmp_path, str(alone / "flower-superlink")) as wait:
        wait()
        for words in lines if NIGHT else lines[:1]:
            done = subprocess.run(
                [alone / "flwr", *words, "--run-config", "local_epochs=1 samples=2"],
                cwd=app, env=environment, capture_output=True, text=True, timeout=400, check=False,
            )  # fmt: skip
            said = done.stdout + done.stderr
            assert "Results: " in said, said
            (where,) = re.findall("Results will be in (.+)", said)
            (folder,) = re.findall("Results: (.+)", said)
            made, last = read_settings(Path(folder)), read_rounds(Path(folder))[-1]
            if words is third:
                assert (where, made["method"]) == (folder, "FedProx")
                assert folder == str(tmp_path / "runs" / "fedprox")
                continue
            assert Path(folder).parent == tmp_path / "runs"
            assert where.startswith(f"{folder}: Flower's SuperLink was started in {tmp_path};")
            assert made["rule"] == "WB" and last["round"] == made["rounds"]
            assert made["clients"] == last["admitted"] == (10 if words is second else 2)


OTHER_DATA = """
import sys
from pathlib import Path
from fedbary.settings.config import resolve
from fedbary.server_app.engine.inline import run_inline

folder = Path(sys.argv[1])
quick = {"engine": "inline", "clients": 2, "rounds": 1, "local_epochs": 1, "samples": 2}
for name, words in {
    "folder": {"dataset": str(folder / "images"), "input_shape": "1x8x8"},
    "table": {"task": "tables", "dataset": str(folder / "rows.csv"), "target": "y"},
    "regression": {"task": "regression", "dataset": "diabetes"},
}.items():
    run_inline(resolve({**quick, **words}), folder / name)
"""


def test_both_apps_read_other_data_and_draw_there(alone, app, tmp_path):
    rows = "".join(f"{k % 7}.5,{k % 3},{k % 2}\n" for k in range(60))
    (tmp_path / "rows.csv").write_text(f"a,b,y\n{rows}")
    for number in range(60):
        place = tmp_path / "images" / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 8), number * 4, np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    done = subprocess.run(
        [alone / "python", "-c", OTHER_DATA, str(tmp_path)],
        cwd=app, env={"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not drawn" not in done.stderr
    for name in ("folder", "table", "regression"):
        assert (tmp_path / name / "posterior.safetensors").exists()
        assert (tmp_path / name / "learning-curves.png").exists()
