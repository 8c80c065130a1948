"""What an installation takes, beside PyTorch: that of a site, and that of simulations."""

from importlib.metadata import PackageNotFoundError, distribution

import pytest
from every_method import NIGHT
from installed import TORCH, closure

NOT_AT_A_SITE = {"ray", "torchvision"}
OF_THE_APP = {"matplotlib", "pandas", "pillow", "scikit-learn"}
"""What both apps import beside the library: `flwr run` installs the dependencies alone."""


def megabytes(name):
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        return 0
    held = (distribution(name).locate_file(file) for file in files if file.suffix != ".pyc")
    return sum(file.stat().st_size for file in held if file.is_file()) / 1e6


def test_a_site_that_trains_needs_nothing_of_a_simulation():
    assert OF_THE_APP <= closure() and not closure() & NOT_AT_A_SITE


@pytest.mark.parametrize(
    ("extras", "apart", "most"),
    [
        ((), {"matplotlib", "pandas", "scikit-learn"}, 400),  # as before the app named them
        ((), set(), 500),
        (("simulation",), set(), 750),
    ][-1 - 2 * NIGHT :],
)
def test_beside_pytorch_it_stays_small(extras, apart, most):
    assert sum(map(megabytes, closure(*extras, apart=TORCH | apart))) < most
