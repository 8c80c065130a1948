"""Run a Flower project with this interpreter's Flower: run.py HOME PROJECT.

It runs with three clients and writes to a folder `out` beside its pyproject.toml.
"""

import subprocess
import sys
from pathlib import Path

from fedbary.launching.environment import flower_environment

sys.path.append(str(Path(__file__).parents[1]))
from superlinks import superlink  # noqa: E402

home, project = map(Path, sys.argv[1:])
environment, folder = flower_environment(home), project / "out"
folder.mkdir()
command = [str(Path(sys.executable).parent / "flwr"), "run", str(project), "local", "--stream"]
command += ["--federation-config", "num-supernodes=3 client-resources-num-cpus=2"]
command += ["--run-config", f'folder="{folder}"']
with superlink(environment, home) as wait:
    wait()
    subprocess.run(command, cwd=project, env=environment, check=True)
