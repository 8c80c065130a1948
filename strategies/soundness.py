"""Soundness of arrays: a client's, and the aggregate's."""

from __future__ import annotations

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedbary.aggregation.reals import is_continuous
from fedbary.aggregation.value_limits import LARGEST_LOG_VAR, LOG_VAR_LIMIT, check_values, extremes

from .arrays import tensor_from_array
from .conventions import Convention


def scale_from(log_var: Tensor, convention: Convention, dtype: torch.dtype) -> Tensor:
    """Return log-variances as scales in a convention's unit and a dtype; admission passes them.

    Log-variances are clamped to ±39.6, and scales to the numbers of the dtype: a standard deviation
    of 1e-9 is 0 in float16.
    """
    scale = convention.from_log_var(log_var.clamp(-LARGEST_LOG_VAR, LARGEST_LOG_VAR))
    numbers = torch.finfo(dtype)
    if numbers.max < torch.finfo(scale.dtype).max:
        least = numbers.tiny * numbers.eps if convention.unit == "std" else numbers.min
        scale = scale.clamp(least, numbers.max)
    return scale.to(dtype)


def check_arrays(record: ArrayRecord, reference: ArrayRecord, convention: Convention) -> None:
    """Raise a ValueError that names the first array that may not enter an aggregate.

    Arrays must have the reference's keys, shapes and dtypes and finite values: log-variances within
    ±40, whatever the unit of the scales, and other values within `value_limit`.
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
                check_values(tensor, key in pairs)
        except ValueError as error:
            raise ValueError(f"array {key!r}: {error}") from error


def _same_kind(array: Array, reference: Array) -> Tensor:
    tensor, expected = tensor_from_array(array), tensor_from_array(reference)
    if tensor.shape != expected.shape:
        raise ValueError(f"its shape is {tuple(tensor.shape)}, not {tuple(expected.shape)}")
    if tensor.dtype != expected.dtype:
        raise ValueError(f"its dtype is {tensor.dtype}, not {expected.dtype}")
    return tensor


def _check_log_vars(tensor: Tensor, convention: Convention) -> None:
    low, high = convention.to_log_var(extremes(tensor)).float().tolist()
    if not -LOG_VAR_LIMIT <= low <= high <= LOG_VAR_LIMIT:
        raise ValueError(
            f"its log-variances run from {low:.6g} to {high:.6g}, "
            f"allowed are {-LOG_VAR_LIMIT:g} to {LOG_VAR_LIMIT:g}"
        )
