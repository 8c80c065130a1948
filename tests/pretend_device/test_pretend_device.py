"""Training and prediction on a device that refuses what CUDA refuses, see `pretend.py`.

By night every case runs there and on the CPU, and the tests marked `cuda` run there too. By day one
case runs there, if a night has compiled the device. The same seed gives the CPU's numbers on both.
What it cannot show: a GPU's own kernels and generators, speed, memory, and several GPUs.
"""

import sys
from pathlib import Path
from shutil import which

import pytest
import torch
from cases import cases
from compiled import library
from every_method import NIGHT, night
from processes import ran
from runs_of import lines

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ON_CPUS = {"regression"}
CHAOTIC = ("resnet20", "LastLayerLaplace")
"""Rounding decides ReLUs at exact ties, and signs of eigenvectors; the CPU itself differs so."""

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not (NIGHT and which("g++") or library().exists()), reason="no g++ yet"),
]


def process(folder, *command, **variables):
    """Run a command of Python where the device's modules, the tests and the examples are found."""
    places = [HERE, ROOT, ROOT / "tests", ROOT / "examples"]
    path = ":".join(map(str, places))
    variables |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return ran(*command, cwd=folder, seconds=3000, **variables)


def runs(folder, side, *names, **variables):
    """What cases have found in a process."""
    program = [sys.executable, "-W", "ignore", HERE / "run_cases.py"]
    process(folder, *program, folder / side, *names, **variables)
    return torch.load(folder / side / "found.pt", weights_only=False)


def test_a_network_with_adapters_trains_and_predicts(tmp_path):
    found = runs(tmp_path, "here", "lora gaussian", PRETEND="1")["lora gaussian"]
    assert found.get("device") == "pretend", found


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """What all cases have found on the device, and on the CPU."""
    folder = tmp_path_factory.mktemp("sides")
    return runs(folder, "here", PRETEND="1"), runs(folder, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(HERE) if NIGHT else ())
def test_the_device_finds_what_the_cpu_finds(name, sides):
    here, cpu = (side[name] for side in sides)
    assert "error" not in here and "error" not in cpu, (here, cpu)
    assert here["device"] == ("cpu" if name in ON_CPUS else "pretend")
    assert here["pictures"] == cpu["pictures"] and len(here["lines"]) == len(cpu["lines"])
    for one, other in zip(here["lines"], cpu["lines"], strict=True):
        assert all(one.get(key) == other.get(key) for key in ("round", "admitted", "refused"))
    assert here["tensors"].keys() == cpu["tensors"].keys()
    if not name.startswith(CHAOTIC):
        close = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}
        torch.testing.assert_close(here["tensors"], cpu["tensors"], **close)


@night
@pytest.mark.slow
def test_what_is_marked_for_gpus_passes(tmp_path):
    files = (ROOT / "tests").rglob("test_*.py")
    marked = [file for file in files if "@pytest.mark.cuda" in file.read_text()]
    plain = ["-m", "cuda", "--assert=plain", "-p", "no:cacheprovider"]
    words = [sys.executable, "-W", "ignore", "-m", "pytest", *plain, *marked]
    done = process(tmp_path, *words, PRETEND="1")
    assert "passed" in done.stdout and "skipped" not in done.stdout


@night
@pytest.mark.slow
def test_clients_on_ray_share_two_devices(tmp_path):
    """Ray takes our word for GPUs. Flower would start three clients, of whom one had no place."""
    words = ["task=tables", "clients=3", "rounds=1", "local_epochs=1", "samples=2", "output=run"]
    words += ["device=pretend", "gpus_per_client=0.6"]
    places = {"RAY_OVERRIDE_RESOURCES": '{"CPU": 3, "GPU": 2}', "PRETEND_DEVICES": "2"}
    command = [Path(sys.executable).with_name("fedbary"), "simulate"]
    process(tmp_path, *command, *words, PRETEND="1", **places)
    assert lines(tmp_path / "run")[-1]["admitted"] == 3
