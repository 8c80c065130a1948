"""What is released, and an environment that has it."""

import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """The folder of the sdist, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("released")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=600, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def environment(released, tmp_path_factory):
    """The python of a new environment: the wheel, and what it depends on from this one."""
    venv = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    (wheel,) = released.glob("fedbary-*.whl")
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=120)
    (site,) = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for command in distribution("flwr").entry_points:
        script = venv / "bin" / command.name
        function = f"from {command.module} import {command.attr}"
        script.write_text(f"#!{python}\nimport sys\n{function}\nsys.exit({command.attr}())\n")
        script.chmod(0o755)
    return python
