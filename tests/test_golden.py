"""The final posterior of small runs is the one that golden.json pins, bit for bit."""

import json

import pytest
from golden import FILE, machine, made, names

GOLDEN = json.loads(FILE.read_text())
here = machine()

pytestmark = pytest.mark.skipif(
    here != GOLDEN["machine"], reason=f"bits were pinned on {GOLDEN['machine']}, here is {here}"
)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * bool(i % 8)) for i, n in enumerate(names())]
)
def test_the_posterior_is_the_pinned_one(name, tmp_path):
    assert made(name, tmp_path / "run") == GOLDEN["posteriors"][name]


def test_every_pinned_run_is_made():
    assert set(names()) == GOLDEN["posteriors"].keys()
