"""The documentation's lines on real servers, as a script in a copy of the clone."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
from processes import marked, servers_of, wait_until

from fedbary.launching.programs import free_port, stop

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("client_app", "examples", "fedbary", "server_app", "strategies")
FILES = (".gitignore", "pyproject.toml", "simulation.yaml", "README.md", "LICENSE")


def blocks_of(page, test):
    """The lines of a page that a test runs."""
    text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
    return re.findall(rf"<!-- run by \S+{test} -->\n```bash\n(.*?)```", text, re.DOTALL)


def clone_in(folder):
    """A copy of what a site or a server needs."""
    clone = folder / "clone"
    clone.mkdir()
    for part in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, clone / part, ignore=ignored)
    for part in FILES:
        shutil.copy(ROOT / part, clone)
    return clone


def script_of(blocks):
    """One script, with ports that are free and this Python."""
    script = "".join([*blocks, "wait\n"])
    for port in ("9092", "9101", "9102", "9103", "9104", "9105"):
        script = script.replace(port, str(free_port()))
    return script.replace("python ", f"{sys.executable} ")


def run_script(blocks, folder):
    """Run the blocks with forked commands; return what they printed, and the clone they ran in."""
    paths = [forked.tools(), Path(sys.executable).parent, os.environ["PATH"]]
    environment = {**marked(folder), "PATH": os.pathsep.join(map(str, paths))}
    clone = clone_in(folder)
    with open(folder / "output", "w+") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script_of(blocks)],
            cwd=clone, env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            code = shell.wait(600)
            wait_until(lambda: servers_of(folder) == [], 30)
        finally:
            stop(servers_of(folder))
    said = (folder / "output").read_text()
    assert code == 0, said
    return said, clone
