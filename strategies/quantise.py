"""Numbers in few bits, by stochastic rounding, and their bytes packed.

A grid of at most 2^bits points with step δ runs from the least number to the largest. x becomes the
point below or above it at random, so that its mean is x:

    code = ⌊(x − low)/δ + u⌋,   u uniform on [0, 1),      x̂ = low + code · δ,   |x̂ − x| < δ,
    E x̂ = x,   Var x̂ ≤ δ²/4.

The step is at least 1/16 (8 bits) or 1/1024 (16 bits) of the numbers' standard deviation: a finer
grid would only encode noise, which does not compress.

Reference: Alistarh et al., QSGD, NeurIPS 2017, for unbiased rounding of clients' messages.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

CODES: Mapping[int, np.dtype[Any]] = {8: np.dtype("<u1"), 16: np.dtype("<u2")}
"""Bits that a code may have, and their dtypes."""

_STEPS_A_STD = {8: 16, 16: 1024}
"""Most steps of a grid in a standard deviation of the numbers."""


def quantised(values: Tensor, bits: int, generator: Generator) -> tuple[NDArray[Any], float, float]:
    """Return the codes of finite numbers, of their shape, with the grid's least point and step.

    Parameters
    ----------
    values : Tensor
        Real and finite, on the CPU.
    bits : int
        8 or 16.
    generator : Generator
        Source of the rounding.
    """
    values, levels = values.double(), 2**bits - 1
    low = float(values.min()) if values.numel() else 0.0
    spread = float(values.max()) - low if values.numel() else 0.0
    if spread == 0:
        return np.zeros(values.shape, CODES[bits]), low, 0.0
    step = max(spread / levels, float(values.std(correction=0)) / _STEPS_A_STD[bits])
    u = torch.rand(values.shape, generator=generator, dtype=torch.float64)
    codes = ((values - low) / step + u).floor_().clamp_(0, levels)
    return codes.numpy().astype(CODES[bits]), low, step


def restored(codes: NDArray[Any], low: float, step: float) -> Tensor:
    """Return the numbers of codes, in float64."""
    return low + step * torch.from_numpy(codes.astype(np.float64))


def packed(codes: NDArray[Any]) -> bytes:
    """Return the codes' bytes, the first of all, then the second of all, deflated.

    The upper bytes of neighbours are alike, so they deflate well side by side.
    """
    planes = np.ascontiguousarray(codes).reshape(-1).view(np.uint8).reshape(-1, codes.itemsize)
    return zlib.compress(np.ascontiguousarray(planes.T).tobytes(), 1)


def unpacked(content: bytes, shape: tuple[int, ...], bits: int) -> NDArray[Any]:
    """Return the codes of that shape; no more is inflated than they need.

    Raises
    ------
    ValueError
        If the bytes are not those of so many codes.
    """
    dtype = CODES[bits]
    count = int(np.prod(shape, dtype=np.int64))
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(content, count * dtype.itemsize + 1)
    except zlib.error as error:
        raise ValueError("its packed bytes cannot be read") from error
    if len(found) != count * dtype.itemsize or not inflate.eof:
        raise ValueError(f"its packed bytes are not those of {count} codes")
    planes = np.frombuffer(found, np.uint8).reshape(dtype.itemsize, count)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(shape)


def halved(values: Tensor, generator: Generator) -> NDArray[Any]:
    """Return finite numbers as bfloat16, rounded to either neighbour so that the mean is x.

    The relative error is below 2⁻⁷, whatever the numbers' magnitudes.
    """
    largest = torch.finfo(torch.bfloat16).max
    held = values.float().clamp(-largest, largest).contiguous()
    noise = torch.randint(2**16, held.shape, generator=generator, dtype=torch.int32)
    exact = held.abs() == largest
    bits = held.view(torch.int32) + noise.masked_fill(exact, 0)
    return (bits.numpy().view(np.uint32) >> 16).astype(CODES[16])


def whole(codes: NDArray[Any]) -> Tensor:
    """Return the numbers that `halved` made, in float32."""
    return torch.from_numpy((codes.astype(np.uint32) << 16).view(np.float32))
