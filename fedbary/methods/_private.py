"""Sums by class with noise: how much hides an example, and what is made of them.

With n examples, c their features' largest norm and e_y the indicator of a class, an example tells

    (e_y,  e_y ⊗ φ/c,  φ φᵀ/c²),

of which the last counts by the Frobenius norm. Another example in its place moves the sum by √6 at
most: by orthogonal features of norm c, and of two classes. So each part has noise of standard
deviation √6 times the multiplier of the mechanism, in its own unit. The number of examples is told.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation.covariance import packed, unpacked
from fedbary.data.digest import content_hash, row_hashes
from fedbary.data.mechanism import noised
from fedbary.inference import Local
from fedbary.methods._class_sums import FEATURES, PRODUCTS, SHARES, sums_by_class
from fedbary.methods._kronecker import last_layer
from fedbary.variational.frozen import frozen_tensors, hash_tensors

SENSITIVITY = math.sqrt(6)

FAR = 6.0
"""The farthest that an honest client's sums may lie, in multiples of the noise's mean distance."""


def private_sums(sums: Mapping[str, Tensor], norm: float, multiplier: float) -> dict[str, Tensor]:
    """Return sums over examples whose features have at most a norm, with noise.

    Parameters
    ----------
    sums : mapping of str to Tensor
        Counts (C,), features by class (C d,), and the triangle of products.
    norm : float
        c.
    multiplier : float
        The noise's standard deviation for a sensitivity of 1.
    """
    std = SENSITIVITY * multiplier
    size = len(sums[FEATURES]) // len(sums[SHARES])
    # half the variance beside the diagonal, as the norm counts
    part = packed(torch.full((size, size), math.sqrt(0.5), dtype=torch.float64).fill_diagonal_(1))
    return {
        SHARES: noised(sums[SHARES], std),
        FEATURES: noised(sums[FEATURES], norm * std),
        PRODUCTS: noised(sums[PRODUCTS], norm**2 * std * part),
    }


def question_of(local: Local, asked: str) -> str:
    """Return a digest of examples, in any order, of the network before the head, and of words."""
    found = hashlib.blake2b(asked.encode(), digest_size=16)
    state = local.state()
    head = last_layer(state)
    hash_tensors(found, frozen_tensors(local.model))
    hash_tensors(found, {name: tensor for name, tensor in state.items() if name not in head})
    rows, y = row_hashes(local.x), local.y.cpu()
    order = torch.from_numpy(np.lexsort((y.numpy(), rows.numpy())))
    found.update(content_hash(rows[order], y[order]).encode())
    return found.hexdigest()


def require_near(means: Mapping[str, Tensor], norm: float, std: float) -> None:
    """Raise a ValueError if sums with noise lie farther out than examples and noise explain.

    Parameters
    ----------
    means : mapping of str to Tensor
        The sums of `private_sums`, over the examples.
    norm : float
        c.
    std : float
        The multiplier over the examples.
    """
    slack, classes = FAR * SENSITIVITY * std, len(means[SHARES])
    sums = sums_by_class(means)
    far = {
        "shares": abs(float(means[SHARES].sum()) - 1) > slack * math.sqrt(classes) + 1e-4,
        "sums": float(sums.norm()) > norm * (1 + slack * math.sqrt(sums.numel())),
        "products": float(unpacked(means[PRODUCTS].double(), sums.shape[1]).norm())
        > norm**2 * (1 + slack * sums.shape[1]),
    }
    if any(far.values()):
        what = ", ".join(name for name, is_far in far.items() if is_far)
        raise ValueError(f"{what} that no examples have, even with noise")


def repaired(
    count: float, means: Mapping[str, Tensor], norm: float, std: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts (C,), means (C, d) and scatter (d, d) within the classes, near noisy sums.

    Counts are not negative and sum to n. A class's mean has at most the norm c. The matrix of
    products, and the scatter that is left of it, are the nearest ones without negative eigenvalues.
    The scatter has the noise's largest eigenvalue, c² √6 std √(2d), on its diagonal beside: what is
    smaller nobody can tell from noise.

    Parameters
    ----------
    count : float
        n.
    means : mapping of str to Tensor
        The sums over n.
    norm : float
        c.
    std : float
        The noise's standard deviation for a sensitivity of 1, over n.
    """
    shares = means[SHARES].double().clamp_min(0)
    shares = shares if shares.sum() > 0 else torch.ones_like(shares)
    shares = shares / shares.sum()
    sums = sums_by_class(means)
    centres = torch.where(shares[:, None] > 0, sums / shares[:, None].clamp_min(1e-30), 0.0)
    norms = centres.norm(dim=1, keepdim=True).clamp_min(1e-30)
    centres = centres * (norm / norms).clamp_max(1)
    products = _positive(unpacked(means[PRODUCTS].double(), sums.shape[1]))
    within = _positive(products - centres.T @ (shares[:, None] * centres))
    size = len(within)
    ridge = norm**2 * SENSITIVITY * std * math.sqrt(2 * size)
    return count * shares, centres, count * (within + ridge * torch.eye(size, dtype=within.dtype))


def _positive(matrix: Tensor) -> Tensor:
    """Return the nearest symmetric matrix without negative eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return vectors @ (values.clamp_min(0)[:, None] * vectors.T)
