"""What an installation takes, beside PyTorch: that of a site, and that of simulations."""

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from installed import closure

NOT_AT_A_SITE = {"ray", "torchvision"}
OF_THE_APP = {"matplotlib", "pandas", "pillow", "scikit-learn"}
"""What both apps import beside the library: `flwr run` installs the dependencies alone."""


@cache
def megabytes(name):
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        return 0
    held = (distribution(name).locate_file(file) for file in files if file.suffix != ".pyc")
    return sum(file.stat().st_size for file in held if file.is_file()) / 1e6


def test_a_site_that_trains_needs_nothing_of_a_simulation():
    assert OF_THE_APP <= closure() and not closure("site") & NOT_AT_A_SITE
    assert {"datasets", "pyarrow"} <= closure("site")


def test_beside_pytorch_it_stays_small():
    assert sum(map(megabytes, closure())) < 500
    assert sum(map(megabytes, closure("site"))) < 750
    assert sum(map(megabytes, closure("simulation"))) < 750
