"""The documentation's lines on real servers, as a script in a copy of the clone."""

import re
import shutil
import sys
from pathlib import Path

from fedbary.launching.programs import free_port

ROOT = Path(__file__).resolve().parents[1]


def blocks_of(page, test):
    """The lines of a page that a test runs."""
    text = (ROOT / "docs" / "howto" / page).read_text(encoding="utf-8")
    return re.findall(rf"<!-- run by \S+{test} -->\n```bash\n(.*?)```", text, re.DOTALL)


def clone_in(folder):
    """A copy of what a site or a server needs."""
    clone = folder / "clone"
    clone.mkdir()
    for part in ("client_app", "examples", "fedbary", "server_app", "strategies"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, clone / part, ignore=ignored)
    for part in (".gitignore", "pyproject.toml", "simulation.yaml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, clone)
    return clone


def script_of(blocks):
    """One script, with ports that are free and this Python."""
    script = "".join([*blocks, "wait\n"])
    for port in ("9092", "9101", "9102", "9103", "9104", "9105"):
        script = script.replace(port, str(free_port()))
    return script.replace("python ", f"{sys.executable} ")
