"""Which arrays are sound: a client's before they are aggregated, and the aggregate itself."""

from __future__ import annotations

import math

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedbary.aggregation.reals import flat_reals, is_continuous

from .arrays import tensor_from_array
from .conventions import Convention

LOG_VAR_LIMIT = 40.0
"""The largest magnitude of an admitted log-variance: standard deviations from 2e-9 to 5e8."""

LARGEST_LOG_VAR = 0.99 * LOG_VAR_LIMIT
"""Where an aggregate's log-variances end, so that clients that keep them are still admitted.

GAA shrinks variances by Σ w² a round; left alone they would leave what is admitted.
"""

_HEADROOM = 2.0**20
"""What sums over clients may multiply a coordinate by."""


def value_limit(dtype: torch.dtype, gaussian: bool) -> float:
    """Return the largest magnitude of an admitted value, which every rule's coordinates can carry.

    A Gaussian's m/v (RKLB) is taken in the mean's precision, or float32, with 1/v up to e⁴⁰;
    squares (FKLB, Multi-Krum, FedAG) in float64. In float32 that is 1.4e15 for means of
    Gaussians and 3e32 for other arrays.

    Parameters
    ----------
    dtype : torch.dtype
        Of the array, floating or complex.
    gaussian : bool
        Whether it holds means of Gaussians.
    """
    largest = torch.finfo(torch.promote_types(dtype, torch.float32)).max / _HEADROOM
    square = math.sqrt(torch.finfo(torch.float64).max / _HEADROOM)
    return min(largest * math.exp(-LOG_VAR_LIMIT) if gaussian else largest, square)


def scale_from(log_var: Tensor, convention: Convention, dtype: torch.dtype) -> Tensor:
    """Return scales of log-variances in a convention's unit and a dtype, all of them admitted.

    Log-variances end at ±39.6, and scales where the numbers of the dtype end: a standard
    deviation of 1e-9 is 0 in float16.
    """
    scale = convention.from_log_var(log_var.clamp(-LARGEST_LOG_VAR, LARGEST_LOG_VAR))
    numbers = torch.finfo(dtype)
    if numbers.max < torch.finfo(scale.dtype).max:
        least = numbers.tiny * numbers.eps if convention.unit == "std" else numbers.min
        scale = scale.clamp(least, numbers.max)
    return scale.to(dtype)


def check_arrays(record: ArrayRecord, reference: ArrayRecord, convention: Convention) -> None:
    """Raise a ValueError that names the first array which may not enter an aggregate.

    Demanded are the reference's keys, shapes and dtypes, finite values, log-variances within ±40
    whatever the unit of the scales, and other values within `value_limit`.
    """
    if missing := reference.keys() - record.keys():
        raise ValueError(f"array {min(missing)!r} is missing")
    if extra := record.keys() - reference.keys():
        raise ValueError(f"array {min(extra)!r} is not the global model's")
    pairs = convention.pairs(reference.keys())
    scales = set(pairs.values())
    for key in reference:
        try:
            tensor = _same_kind(record[key], reference[key])
            if tensor.numel() == 0 or not is_continuous(tensor):
                continue
            if key in scales:
                _check_log_vars(tensor, convention)
            else:
                _check_values(tensor, value_limit(tensor.dtype, key in pairs))
        except ValueError as error:
            raise ValueError(f"array {key!r}: {error}") from error


def _same_kind(array: Array, reference: Array) -> Tensor:
    tensor, expected = tensor_from_array(array), tensor_from_array(reference)
    if tensor.shape != expected.shape:
        raise ValueError(f"its shape is {tuple(tensor.shape)}, not {tuple(expected.shape)}")
    if tensor.dtype != expected.dtype:
        raise ValueError(f"its dtype is {tensor.dtype}, not {expected.dtype}")
    return tensor


def _extremes(tensor: Tensor) -> Tensor:
    extremes = torch.stack(torch.aminmax(flat_reals(tensor))).double()
    if not extremes.isfinite().all():
        raise ValueError("it holds values that are not finite")
    return extremes


def _check_values(tensor: Tensor, limit: float) -> None:
    low, high = _extremes(tensor).tolist()
    if not -limit <= low <= high <= limit:
        raise ValueError(
            f"its values run from {low:.6g} to {high:.6g}, allowed are {-limit:.3g} to {limit:.3g}"
        )


def _check_log_vars(tensor: Tensor, convention: Convention) -> None:
    low, high = convention.to_log_var(_extremes(tensor)).float().tolist()
    if not -LOG_VAR_LIMIT <= low <= high <= LOG_VAR_LIMIT:
        raise ValueError(
            f"its log-variances run from {low:.6g} to {high:.6g}, "
            f"allowed are {-LOG_VAR_LIMIT:g} to {LOG_VAR_LIMIT:g}"
        )
