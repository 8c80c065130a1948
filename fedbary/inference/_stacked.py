"""The posteriors of several clients as matrices, a row each."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedbary.inference import Local
from fedbary.inference._update import Update
from fedbary.inference.shared.vectors import Momentum, Vectors, kl_of

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Call(Local):
    """A client's round, and the network's state dict when the client asked for its inference."""

    start: Mapping[str, Tensor] = field(default_factory=dict)


class StackedRows:
    """Values and gradients, (K, d) each."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.grad = value, torch.zeros_like(value)

    def parts(self, shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Return the values as views (K, *shape), whose gradients autograd can be asked for."""
        sizes = [shape.numel() for shape in shapes]
        columns = self.value.split(sizes, 1)
        return [
            part.unflatten(1, shape).detach().requires_grad_()
            for part, shape in zip(columns, shapes, strict=True)
        ]


class StackedPosterior:
    """The posteriors of K calls and their priors; the attributes of `Vectors`, a row a call.

    Parameters
    ----------
    network
        A network of the calls' kind, in PyTorch's own memory format; its values are overwritten.
    calls
        One for each row.

    Attributes
    ----------
    names : list of str
        Names of the trained parameters: those of `points`, then those of `log_vars`.
    held : dict of str to Tensor
        The parameters that are not trained, (K, *shape).
    """

    def __init__(self, network: nn.Module, calls: Sequence[Call]) -> None:
        rows: dict[str, list[Tensor]] = {}
        for call in calls:
            network.load_state_dict(call.start)
            q = Vectors(network, call.prior)
            for name, row in {
                "points": q.points.value,
                "log_vars": q.log_vars.value,
                "shift": q.prior_shift,
                "precision": q.prior_precision,
            }.items():
                rows.setdefault(name, []).append(row.clone())
        stacked = {name: torch.stack(of_all) for name, of_all in rows.items()}
        self.points, self.log_vars = (
            StackedRows(stacked["points"]),
            StackedRows(stacked["log_vars"]),
        )
        self.mean = self.points.value[:, : self.log_vars.value.shape[1]]
        self.prior_shift, self.prior_precision = stacked["shift"], stacked["precision"]
        self.has_density = q.has_density
        self.names = [*q.point_names, *q.log_var_names]
        self._shapes = [[shape for shape, _ in part.layout] for part in (q.points, q.log_vars)]
        self.held = {
            name: torch.stack([call.start[name] for call in calls])
            for name in calls[0].start.keys() - set(self.names)
        }

    def parameters(self) -> dict[str, Tensor]:
        """Return the trained parameters, (K, *shape) by name, as views that autograd knows."""
        points, log_vars = self._shapes
        parts = [*self.points.parts(points), *self.log_vars.parts(log_vars)]
        return dict(zip(self.names, parts, strict=True))

    def add_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Add gradients of the parameters, in the order of their names."""
        count = len(self._shapes[0])
        for rows, parts in ((self.points, gradients[:count]), (self.log_vars, gradients[count:])):
            if parts:
                rows.grad.add_(torch.cat([part.flatten(1) for part in parts], 1))

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of each call, (K,), in nats."""
        return kl_of(self)


def first_rows(stacked: T, count: int) -> T:
    """Return what holds tensors of K rows as it is for the first `count` of them, in their memory.

    That is a tensor, tensors by name, a `StackedPosterior`, or an update of one.
    """
    if isinstance(stacked, Tensor):
        return stacked[:count]  # type: ignore[return-value]
    if isinstance(stacked, dict):
        return {name: first_rows(part, count) for name, part in stacked.items()}  # type: ignore[return-value]
    if not isinstance(stacked, StackedRows | StackedPosterior | Momentum | Update):
        return stacked
    fewer: Any = copy.copy(stacked)
    for name, part in vars(stacked).items():
        setattr(fewer, name, first_rows(part, count))
    return fewer
