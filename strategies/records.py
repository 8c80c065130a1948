"""Posteriors in Flower's records: how to read, write and aggregate them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from flwr.app import Array, ArrayRecord

from fedbary.aggregation import AnyRule, aggregate_tensors
from fedbary.aggregation.sums import LARGEST_LOG_VAR
from fedbary.gaussian import Posterior

from .arrays import Blanks, array_from_tensor
from .conventions import Convention, names_of


def posterior_from_arrays(record: ArrayRecord, convention: Convention) -> Posterior:
    """Read a posterior from arrays in a convention's names and unit.

    `convention.name` gives a Gaussian tensor's name from its mean's key; other tensors keep their
    keys. Tensors share the record's bytes if possible: do not write to them.

    Raises
    ------
    ValueError
        If an array cannot be read, a scale has no mean, or two tensors have one name.
    """
    return Posterior.from_state_dict(names_of(record.keys(), convention).read(record))


def arrays_from_posterior(
    posterior: Posterior, convention: Convention, like: ArrayRecord
) -> ArrayRecord:
    """Write a posterior with the keys of the record `like`, in its order.

    It is the inverse of `posterior_from_arrays`.

    Raises
    ------
    ValueError
        If `like` asks for a tensor that the posterior does not have.
    """
    pairs = convention.pairs(like.keys())
    arrays: dict[str, Array] = {}
    for key in _means(like, pairs):
        name = convention.name(key) if key in pairs else key
        if name not in posterior.mean or (key in pairs) != (name in posterior.log_var):
            kind = "Gaussian" if key in pairs else "deterministic"
            raise ValueError(f"the posterior has no {kind} tensor {name!r} for array {key!r}")
        arrays[key] = array_from_tensor(posterior.mean[name])
        if key in pairs:
            scale = convention.from_log_var(posterior.log_var[name])
            arrays[pairs[key]] = array_from_tensor(scale)
    return ArrayRecord({key: arrays[key] for key in like})


def aggregate_records(
    rule: AnyRule,
    records: Sequence[ArrayRecord],
    weights: Sequence[float],
    convention: Convention,
    max_precision_ratio: float | None = None,
) -> ArrayRecord:
    """Aggregate records by `fedbary.aggregation.aggregate_tensors`.

    It works on the records' bytes, in float32 if the arrays are no wider. The extra memory is the
    result's, whatever the number of records.

    Parameters
    ----------
    rule : Rule or RobustRule or JointRule
        The rule for Gaussian tensors; a robust rule is for all tensors.
    records : sequence of ArrayRecord
        One per client, all with the keys, shapes and dtypes of the first and log-variances within
        ±80. They are not changed.
    weights : sequence of float
        One per client: finite, none negative, not all 0; any scale.
    convention : Convention
        Rule that tells Gaussian arrays, and the unit of their scales.
    max_precision_ratio : float, optional
        The largest ratio of a precision to the clients' median; see `fedbary.aggregation.tensors`.

    Returns
    -------
    ArrayRecord
        The aggregate in new arrays, with the keys in the order of the first record. Integer and
        bool arrays are the clients' rounded mean, or a robust rule's median; see
        `aggregate_buffer`.

    Raises
    ------
    SettingError
        If the weights or the ratio are not allowed, or the records too few for the rule.
    """
    names, blanks = names_of(records[0].keys(), convention), Blanks()
    result = aggregate_tensors(
        rule,
        [names.read(record) for record in records],
        weights,
        max_precision_ratio,
        least_dtype=torch.float32,
        largest_log_var=LARGEST_LOG_VAR,
        empty=blanks.empty,
    )
    return names.write(result, records[0], blanks)


def _means(record: ArrayRecord, pairs: dict[str, str]) -> list[str]:
    """Return the keys of a record that are no scale's, in order."""
    scales = set(pairs.values())
    return [key for key in record if key not in scales]
