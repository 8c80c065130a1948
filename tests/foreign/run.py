"""Run Flower projects, one after the other, with this interpreter's Flower: run.py HOME PROJECT…

Each runs with three clients and writes to a folder `out` beside its pyproject.toml.
"""

import subprocess
import sys
from pathlib import Path

from fedbary.launching.environment import flower_environment

sys.path.append(str(Path(__file__).parents[1]))
from superlinks import superlink  # noqa: E402

home, *projects = map(Path, sys.argv[1:])
environment = flower_environment(home)
federation = "num-supernodes=3 client-resources-num-cpus=2"
with superlink(environment, home) as wait:
    wait()
    for project in projects:
        folder = project / "out"
        folder.mkdir()
        command = [str(Path(sys.executable).parent / "flwr"), "run", str(project), "local"]
        command += ["--stream", "--federation-config", federation]
        command += ["--run-config", f'folder="{folder}"']
        subprocess.run(command, cwd=project, env=environment, check=True)
