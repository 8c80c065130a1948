"""Tensors as real numbers: a complex number is two of them."""

from __future__ import annotations

import torch
from torch import Tensor


def is_continuous(tensor: Tensor) -> bool:
    """Return whether a tensor holds floating or complex numbers, neither integers nor bools."""
    return tensor.is_floating_point() or tensor.is_complex()


def flat_reals(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers in one dimension, without a copy where that is possible.

    Real and imaginary parts of a complex tensor alternate.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)
