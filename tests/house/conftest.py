"""What is released, and an environment that has it."""

import fcntl
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder of all workers of this session, which one at a time may fill."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fill(folder)
    return folder


def _fill(folder):
    """Build the sdist, the wheel and the environment, unless another worker has."""
    if (folder / "complete").exists():
        return
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    build += [str(folder / "released"), str(ROOT)]
    subprocess.run(build, check=True, timeout=600, capture_output=True)
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    (wheel,) = (folder / "released").glob("fedbary-*.whl")
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=120)
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(f"{distribution('flwr').locate_file('')}\n")
    for command in distribution("flwr").entry_points:
        script = venv / "bin" / command.name
        function = f"from {command.module} import {command.attr}"
        script.write_text(f"#!{python}\nimport sys\n{function}\nsys.exit({command.attr}())\n")
        script.chmod(0o755)
    (folder / "complete").touch()


@pytest.fixture(scope="session")
def released(shared):
    """The folder of the sdist, and of the wheel that is built from it."""
    return shared / "released"


@pytest.fixture(scope="session")
def environment(shared):
    """The python of a new environment: the wheel, and what it depends on from this one."""
    return shared / "venv" / "bin" / "python"
