"""What an installation brings: distributions by what they require."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
TORCH = frozenset({"torch", "torchvision", "triton"})


def named(text):
    """A distribution's name in its plain form."""
    return re.sub(r"[-_.]+", "-", text).lower()


def _add(requirement, apart, found):
    """Add a distribution with all that it needs, but for those apart."""
    asked = Requirement(requirement)
    key = (named(asked.name), *sorted(asked.extras))
    if key in found or key[0] in apart:
        return
    found.add(key)
    for text in distribution(key[0]).requires or []:
        marker = Requirement(text).marker
        if not marker or any(marker.evaluate({"extra": e}) for e in ("", *asked.extras)):
            _add(text, apart, found)


def closure(*extras, apart=TORCH):
    """The distributions that this project's pyproject.toml asks for, with extras of its own."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    asked, found = list(project["dependencies"]), set()
    for extra in extras:
        asked += project["optional-dependencies"].get(extra, [extra])
    for text in asked:
        _add(text, apart, found)
    return {name for name, *_ in found} - {"fedbary"}
