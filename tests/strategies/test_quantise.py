"""Numbers in few bits: rounding without bias, within a step, and bytes that come back."""

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.quantise import CODES, halved, packed, quantised, restored, unpacked, whole

BITS = sorted(CODES)


def numbers(seed, count=200):
    """Numbers of unlike scales with far outliers."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator, dtype=torch.float64)
    return 10 ** (3 * torch.rand((), generator=generator) - 2) * (values**3 + 1)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("seed", range(3))
def test_rounding_stays_within_a_step_and_has_no_bias(bits, seed):
    values, draws = numbers(seed), 400
    generator = torch.Generator().manual_seed(seed)
    found = torch.stack(
        [restored(*quantised(values, bits, generator)) for _ in range(draws)]
    )  # fmt: skip
    _, low, step = quantised(values, bits, generator)
    assert ((found - values).abs() <= step * (1 + 1e-9)).all()
    assert low == values.min() and step >= float(values.max() - values.min()) / (2**bits - 1)
    error = (found.mean(0) - values).abs()  # its standard deviation is at most δ/2 √draws
    assert (error < 5 * step / 2 / draws**0.5).all()
    assert found.var(0).max() <= 1.3 * step**2 / 4


@pytest.mark.parametrize("bits", BITS)
def test_what_is_constant_or_empty_comes_back_exactly(bits):
    for values in (torch.full((3, 2), -7.25), torch.tensor(2.5), torch.empty(0, 4)):
        codes, low, step = quantised(values, bits, torch.Generator())
        back = restored(unpacked(packed(codes), tuple(values.shape), bits), low, step)
        assert torch.equal(back, values.double()) and back.shape == values.shape


@pytest.mark.parametrize("bits", BITS)
@given(st.lists(st.integers(0, 5), max_size=3), st.randoms(use_true_random=False))
def test_packed_codes_come_back(bits, shape, random):
    rng = np.random.default_rng(random.randrange(2**32))
    codes = rng.integers(0, 2**bits, shape).astype(CODES[bits])
    back = unpacked(packed(codes), tuple(shape), bits)
    assert back.dtype == codes.dtype and back.shape == codes.shape and (back == codes).all()


@given(st.binary(max_size=60), st.integers(0, 40))
def test_strange_bytes_are_refused_or_are_codes_of_that_shape(content, count):
    try:
        assert unpacked(content, (count,), 8).shape == (count,)
    except ValueError as error:
        assert "packed bytes" in str(error)


def test_a_bomb_is_not_inflated():
    bomb = zlib.compress(bytes(10**8), 9)
    with pytest.raises(ValueError, match="not those of 4 codes"):
        unpacked(bomb, (4,), 8)
    with pytest.raises(ValueError, match="not those of 4 codes"):
        unpacked(packed(np.zeros(3, np.uint8)), (4,), 8)


def test_half_precision_has_no_bias_at_any_magnitude():
    values = (10.0 ** torch.arange(-30, 31)).repeat(2) * torch.tensor([1.0, -1.3]).repeat(61)
    generator, draws = torch.Generator().manual_seed(0), 2000
    found = torch.stack([whole(halved(values, generator)) for _ in range(draws)]).double()
    relative = (found - values) / values.abs()
    assert relative.abs().max() < 2**-7
    assert (relative.mean(0).abs() < 5 * 2**-8 / draws**0.5).all()
    assert torch.equal(found[0].to(torch.bfloat16).double(), found[0])


def test_the_largest_numbers_stay_finite():
    largest = torch.tensor([3.4e38, -3.4e38, 0.0])
    assert whole(halved(largest, torch.Generator())).isfinite().all()
