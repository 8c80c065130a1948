"""A client mod that sends posteriors in a rule's coordinates, where a weighted sum is the rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MessageType
from torch import Tensor

from fedbary.aggregation import RULES, AnyRule, Rule, rule_named
from fedbary.errors import SettingError

from .arrays import array_from_tensor, tensor_from_array
from .conventions import Convention, check_arrays, convention_named, scale_from
from .internals import ClientAppCallable

PREFIX = "chart"
"""The first word of a charted array's key, ``chart/<rule>/<coordinate>/<dtype>/<key>``."""

POINT = "-"
"""Word for deterministic arrays, in place of the coordinate."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.from_numpy(np.empty(0, code)).dtype for code in "?bBhHiIlLefdFD")
}


def chart(rule: str, convention: str | Convention = "fedbary") -> Chart:
    """Return the client mod that sends posteriors in the coordinates of a rule.

    Parameters
    ----------
    rule : str
        The name of a rule that is a mean.
    convention : str or Convention
        Rule that tells Gaussian arrays, and the unit of their scales: a name in `CONVENTIONS`, or
        your own.

    Raises
    ------
    SettingError
        If the rule is unknown or no mean, or the convention unknown.
    """
    chosen = rule_named(rule)
    if not _is_chart(chosen):
        means = ", ".join(name for name, other in RULES.items() if _is_chart(other))
        raise SettingError("rule", rule, f"the rules that are a mean: {means}")
    return Chart(chosen, convention_named(convention))


@dataclass(frozen=True)
class Chart:
    """A Flower client mod, ``ClientApp(mods=[chart("RKLB")])``, and its two maps.

    A rule that is a mean aggregates to F⁻¹(Σ w_k F(m_k, log v_k)) with its chart F. Each client
    sends F(m_k, log v_k). The server computes only the weighted sum, and each client applies F⁻¹
    before it trains or evaluates. So Flower's own FedAvg, or a secure aggregation that learns only
    the sum, gives the result of the rule's strategy, up to rounding.

    The keys of charted arrays name the rule, the coordinate and the original dtype; PyTorch refuses
    to load such arrays into a model. Gaussian arrays travel in float32 if they are no wider; those
    of a `centred` rule travel in float64, because its inverse subtracts squares. The other floating
    arrays travel in their own dtype, half precision in float32. Integer and bool arrays travel in
    float64 and become their rounded mean.

    The server cannot check posteriors any more. The mod refuses to send one that the strategies
    would not admit, but it runs at the client. A server that does more than a weighted mean (Adam,
    a median, noise) may leave the chart; `inverse` then raises an error.

    Parameters
    ----------
    rule : Rule
        The rule whose coordinates are sent.
    convention : Convention
        Rule that tells Gaussian arrays, and the unit of their scales.
    """

    rule: Rule
    convention: Convention

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Map received arrays out of the chart, and trained arrays into the chart.

        Raises
        ------
        ValueError
            If a training message or its reply does not hold exactly one ArrayRecord, or if the
            strategies would not admit the trained arrays.
        """
        for name, record in list(message.content.array_records.items()):
            message.content[name] = self.inverse(record)
        reference = _only_record(message) if _is_training(message) else None
        reply = call_next(message, context)
        if reference is not None and reply.has_content():
            trained = _only_record(reply)
            check_arrays(trained, reference, self.convention)
            name = next(iter(reply.content.array_records))
            reply.content[name] = self.forward(trained)
        return reply

    def forward(self, arrays: ArrayRecord) -> ArrayRecord:
        """Map a posterior into the chart; the arrays given are not changed.

        If the clients' mods compare received with sent arrays, as Flower's clipping mods do, the
        server must start from such arrays. Otherwise it may start from plain ones.

        Raises
        ------
        ValueError
            If an array is charted already, cannot be read, or is a scale without its mean.
        """
        for key in arrays:
            if _is_charted(key):
                raise ValueError(f"array {key!r} is charted already")
        pairs = self.convention.pairs(arrays.keys())
        tensors = {key: tensor_from_array(array) for key, array in arrays.items()}
        parts: dict[str, dict[str, Tensor]] = {}
        for key in tensors.keys() - set(pairs.values()):
            if key in pairs:
                first, *others = self._coordinates(tensors[key], tensors[pairs[key]])
                parts[key] = {"0": first}
                parts[pairs[key]] = {str(i): other for i, other in enumerate(others, 1)}
            else:
                parts[key] = {POINT: _widened(tensors[key])}
        charted = ArrayRecord()
        for key, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            for coordinate, part in parts[key].items():
                name = f"{PREFIX}/{self.rule.name}/{coordinate}/{dtype}/{key}"
                charted[name] = array_from_tensor(part)
        return charted

    def inverse(self, arrays: ArrayRecord) -> ArrayRecord:
        """Map arrays out of the chart; return plain arrays as they are.

        Use it at the server, in `evaluate_fn` and on `Result.arrays`. Plain arrays, such as the
        first ones, pass unchanged.

        Raises
        ------
        ValueError
            If only some arrays are charted, or by another rule or convention; if they are not the
            coordinates of a Gaussian, or cannot be read.
        """
        if not any(_is_charted(key) for key in arrays):
            return arrays
        parts: dict[str, dict[str, Tensor]] = {}
        dtypes: dict[str, torch.dtype] = {}
        for name, array in arrays.items():
            words = name.split("/", 4)
            if len(words) != 5 or words[:2] != [PREFIX, self.rule.name]:
                raise ValueError(f"array {name!r} is not in the chart of {self.rule.name}")
            _, _, coordinate, dtype, key = words
            parts.setdefault(key, {})[coordinate] = tensor_from_array(array)
            if dtypes.setdefault(key, _dtype_named(dtype)) != _dtype_named(dtype):
                raise ValueError(f"array {key!r} was charted in two dtypes")
        pairs = self.convention.pairs(parts)
        plain: dict[str, Tensor] = {}
        for key, part in parts.items():
            if (key in pairs) != ("0" in part):
                raise ValueError(f"array {key!r} was charted by another convention")
            if key in pairs:
                log_var_key = pairs[key]
                if not (dtypes[key].is_floating_point and dtypes[log_var_key].is_floating_point):
                    raise ValueError(self._left(key))
                mean, log_var = self._gaussian(key, part, parts[log_var_key])
                plain[key] = mean.to(dtypes[key])
                plain[log_var_key] = scale_from(log_var, self.convention, dtypes[log_var_key])
            elif POINT in part and _is_average(part[POINT], dtypes[key]):
                continuous = _is_continuous(dtypes[key])
                plain[key] = (part[POINT] if continuous else part[POINT].round()).to(dtypes[key])
        for key in dtypes:
            if key not in plain or not plain[key].isfinite().all():
                raise ValueError(self._left(key))
        return ArrayRecord({key: array_from_tensor(plain[key]) for key in dtypes})

    def _coordinates(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        least = torch.float64 if self.rule.centred else torch.float32
        dtype = torch.promote_types(torch.promote_types(mean.dtype, scale.dtype), least)
        return self.rule.forward(mean.to(dtype), self.convention.to_log_var(scale.to(dtype)))

    def _gaussian(
        self, key: str, first: dict[str, Tensor], others: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the mean and the log-variance at these coordinates."""
        coordinates = [*first.values(), *(others[i] for i in sorted(others))]
        shapes = {part.shape for part in coordinates}
        fit = len(coordinates) == len(self.rule.powers) and len(shapes) == 1
        if not (fit and all(part.is_floating_point() for part in coordinates)):
            raise ValueError(self._left(key))
        mean, log_var = self.rule.inverse(*coordinates)
        if not log_var.isfinite().all():
            raise ValueError(self._left(key))
        return mean, log_var

    def _left(self, key: str) -> str:
        return (
            f"array {key!r} holds the {self.rule.name} coordinates of no Gaussian: in a chart "
            "a server may take weighted means, and nothing else that leaves its range"
        )


def _dtype_named(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise ValueError(f"{name!r} is no dtype of an array")
    return _DTYPES[name]


def _is_chart(rule: AnyRule) -> TypeGuard[Rule]:
    """Return whether the rule is a mean in a chart of its own."""
    return isinstance(rule, Rule) and rule.is_mean


def _is_average(point: Tensor, dtype: torch.dtype) -> bool:
    """Return whether this may be an average of arrays of the dtype."""
    is_of_kind = point.is_complex() if dtype.is_complex else point.is_floating_point()
    return is_of_kind and bool(point.isfinite().all())


def _is_continuous(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _widened(tensor: Tensor) -> Tensor:
    """Return a deterministic tensor in a dtype in which it may be averaged."""
    least = torch.float32 if _is_continuous(tensor.dtype) else torch.float64
    return tensor.to(torch.promote_types(tensor.dtype, least))


def _is_charted(key: str) -> bool:
    return key.startswith(PREFIX + "/")


def _is_training(message: Message) -> bool:
    return message.metadata.message_type.partition(".")[0] == MessageType.TRAIN


def _only_record(message: Message) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"chart: a training message has {len(records)} ArrayRecords, not one")
    return records[0]
