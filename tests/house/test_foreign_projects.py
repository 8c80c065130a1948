"""Other people's Flower projects, in a clean environment with the built wheel."""

import difflib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from every_method import NIGHT
from processes import dead_ray
from safetensors.numpy import load_file

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
FOREIGN = TESTS / "foreign"
PLAIN = "from flwr.serverapp.strategy import FedAvg"
OURS = "from fedbary.strategies import RKLB"

PROJECTS = {
    "bayesian_torch_digits": (
        "bayesian-torch",
        {f"bayesian.mu_{part}": f"bayesian.rho_{part}" for part in ("weight", "bias")},
        lambda rho: np.log1p(np.exp(rho)),
        lambda std: np.log(np.expm1(std)),
    ),
    "loc_scale_wine": ("scale", {"guide.loc": "guide.scale"}, lambda std: std, lambda std: std),
}
"""The convention of each, the pairs of its arrays, a std from a scale and a scale from a std."""

TRIED = list(PROJECTS) if NIGHT else ["loc_scale_wine"]
"""By day the other convention is held by tests/house/test_examples, without Flower's servers."""


@pytest.fixture(scope="module")
def runs(environment, tmp_path_factory):
    """Each project's folder after its run, FedAvg replaced by RKLB."""
    home, work = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("projects")
    folders = {name: work / name for name in TRIED}
    for name, folder in folders.items():
        shutil.copytree(FOREIGN / name, folder)
        server = folder / "server_app.py"
        before = server.read_text()
        after = before.replace(PLAIN, OURS)
        after = after.replace("FedAvg(", f'RKLB(convention="{PROJECTS[name][0]}", ')
        server.write_text(after)
        lines = difflib.ndiff(before.splitlines(), after.splitlines())
        assert sum(line.startswith("+") for line in lines) == 2
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(home), "OMP_NUM_THREADS": "1"}
    with dead_ray() as trace:
        done = subprocess.run(
            [str(environment), str(FOREIGN / "run.py"), str(home), *map(str, folders.values())],
            cwd=work, env={**variables, **trace},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folders, done.stdout + done.stderr


def test_the_environment_is_clean(environment, tmp_path):
    (tmp_path / "strategies.py").write_text("")
    program = (
        "import fedbary, fedbary.strategies, flwr, strategies, importlib.util as u;"
        "print(fedbary.__file__, fedbary.strategies.__file__, strategies.__file__, sep='\\n');"
        "assert u.find_spec('server_app') is None"
    )
    done = subprocess.run(
        [str(environment), "-c", program], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, strategies, theirs = map(Path, done.stdout.split())
    assert ours.is_relative_to(environment.parents[1])
    assert strategies.is_relative_to(environment.parents[1])
    assert theirs.parent == tmp_path


@pytest.mark.parametrize("name", TRIED)
def test_one_class_for_another_makes_the_server_take_the_barycentre(runs, name):
    folders, log = runs
    _, pairs, std_of, scale_of = PROJECTS[name]
    out = folders[name] / "out"
    assert (out / "global.safetensors").exists(), log
    result = load_file(out / "global.safetensors")
    states = [load_file(out / f"{partition}.safetensors") for partition in range(3)]
    counts = np.array([state.pop("num-examples") for state in states])
    weights = counts / counts.sum()
    assert set(result) == set(states[0])

    def mean(arrays):
        return np.tensordot(weights, np.stack(arrays).astype(np.float64), 1)

    for key in result.keys() - set(pairs) - set(pairs.values()):
        expected = mean([state[key] for state in states])
        np.testing.assert_allclose(result[key], expected, 1e-5, 1e-6)
    for mean_key, scale_key in pairs.items():
        precisions = [std_of(state[scale_key].astype(np.float64)) ** -2 for state in states]
        precision = mean(precisions)
        shift = mean([p * state[mean_key] for p, state in zip(precisions, states, strict=True)])
        np.testing.assert_allclose(result[mean_key], shift / precision, 1e-4, 1e-5)
        np.testing.assert_allclose(result[scale_key], scale_of(precision**-0.5), 1e-4, 1e-5)
        averaged = mean([state[mean_key] for state in states])
        assert np.abs(result[mean_key] - averaged).max() > 1e-4
