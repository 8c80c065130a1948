"""Another's Flower project, in a clean environment with the built wheel."""

import difflib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from processes import dead_ray
from safetensors.numpy import load_file

from fedbary.runs.commit import app_digest

pytestmark = pytest.mark.slow

FOREIGN = Path(__file__).resolve().parents[1] / "foreign"
PLAIN = "from flwr.serverapp.strategy import FedAvg"
OURS = "from fedbary.strategies import RKLB"


@pytest.fixture(scope="module")
def out(environment, tmp_path_factory):
    """What the project leaves, FedAvg replaced by RKLB."""
    home, work = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("projects")
    folder = Path(shutil.copytree(FOREIGN / "loc_scale_wine", work / "wine"))
    server = folder / "server_app.py"
    before = server.read_text()
    after = before.replace(PLAIN, OURS).replace("FedAvg(", 'RKLB(convention="scale", ')
    server.write_text(after)
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    assert sum(line.startswith("+") for line in lines) == 2
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(home), "OMP_NUM_THREADS": "1"}
    with dead_ray() as trace:
        done = subprocess.run(
            [str(environment), str(FOREIGN / "run.py"), str(home), str(folder)],
            cwd=work, env={**variables, **trace},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "out" / "global.safetensors").exists(), done.stdout + done.stderr
    return folder / "out"


def test_the_environment_is_clean(environment, tmp_path):
    (tmp_path / "strategies.py").write_text("")
    program = (
        "import fedbary, fedbary.strategies, flwr, strategies, importlib.util as u;"
        "print(fedbary.__file__, fedbary.strategies.__file__, strategies.__file__, sep='\\n');"
        "from fedbary.runs.commit import app_digest;"
        "assert u.find_spec('server_app') is None;"
        f"assert app_digest() == '{app_digest()}'"
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


def test_one_class_for_another_makes_the_server_take_the_barycentre(out):
    result = load_file(out / "global.safetensors")
    states = [load_file(out / f"{partition}.safetensors") for partition in range(3)]
    counts = np.array([state.pop("num-examples") for state in states])

    def mean(arrays):
        return np.tensordot(counts / counts.sum(), np.stack(arrays).astype(np.float64), 1)

    assert set(result) == set(states[0]) == {"guide.loc", "guide.scale", "bias"}
    averaged = {name: mean([state[name] for state in states]) for name in result}
    precisions = [state["guide.scale"].astype(np.float64) ** -2 for state in states]
    shift = mean([p * state["guide.loc"] for p, state in zip(precisions, states, strict=True)])
    np.testing.assert_allclose(result["bias"], averaged["bias"], 1e-5, 1e-6)
    np.testing.assert_allclose(result["guide.loc"], shift / mean(precisions), 1e-4, 1e-5)
    np.testing.assert_allclose(result["guide.scale"], mean(precisions) ** -0.5, 1e-4, 1e-5)
    assert np.abs(result["guide.loc"] - averaged["guide.loc"]).max() > 1e-4
