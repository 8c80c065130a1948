"""What an installation takes, beside PyTorch: that of a site, and that of simulations."""

import re
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from every_method import NIGHT
from packaging.requirements import Requirement

TORCH = {"torch", "torchvision", "triton"}
NOT_AT_A_SITE = {"ray", "pandas", "matplotlib", "torchvision", "scikit-learn"}


def named(text):
    return re.sub(r"[-_.]+", "-", text).lower()


def needed(name, extras, found):
    """Add each distribution that one needs, with its extras, beside PyTorch."""
    if (name, *sorted(extras)) in found or name in TORCH:
        return
    found.add((name, *sorted(extras)))
    for text in distribution(name).requires or []:
        asked = Requirement(text)
        if asked.marker and not any(asked.marker.evaluate({"extra": e}) for e in ("", *extras)):
            continue
        needed(named(asked.name), asked.extras, found)


def closure(*extras):
    found = set()
    needed("fedbary", extras, found)
    return {name for name, *_ in found} - {"fedbary"}


def megabytes(name):
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        return 0
    held = (distribution(name).locate_file(file) for file in files if file.suffix != ".pyc")
    return sum(file.stat().st_size for file in held if file.is_file()) / 1e6


def test_a_site_that_trains_needs_nothing_of_a_simulation():
    assert not closure() & NOT_AT_A_SITE


@pytest.mark.parametrize(("extras", "most"), [((), 400), (("simulation",), 750)][-1 - NIGHT :])
def test_beside_pytorch_it_stays_small(extras, most):
    assert sum(map(megabytes, closure(*extras))) < most
