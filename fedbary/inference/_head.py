"""The last layer of a network of which nothing else trains: its features, its loss, its curvature.

The loss is convex in such a layer's weights, so that its minimum needs no step size.

A site may have an intercept of its own, which it maximises over and never sends. With outputs f and
the intercept a,

    L(f) = min_a NLL(f + a) + ‖a‖² / (2 s²),

whose Hessian in the weights is the Schur complement of that in weights and a. So the mode of all
sites' L is that of all rows with an intercept for each site.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbary.aggregation.covariance import Full, Structure, packed, unpacked
from fedbary.data.batches import scale_pixels
from fedbary.errors import SettingError
from fedbary.inference import Local

_AT_ONCE = 4096
"""Examples that go through the body at a time."""

_STEPS, _SMALL = 50, 1e-12
"""Newton's steps at most, and the decrement below which they end, in nats a row."""


class Joint(ABC):
    """A mean loss of outputs and targets that is no sum over rows."""

    @abstractmethod
    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of outputs (n, outputs), in nats a row."""

    def hessian(self, features: Tensor, weights: Tensor, y: Tensor) -> Tensor:
        """Return the Hessian of n times the loss by the weights, row by row, (p, p)."""

        def total(flat: Tensor) -> Tensor:
            return len(features) * self(features @ flat.view_as(weights).T, y)

        with torch.enable_grad():
            found: Tensor = torch.autograd.functional.hessian(total, weights.flatten())
        return found

    def expanded(self, head: Head, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return n times the loss at a vector of parameters, its gradient and its Hessian.

        The vector is the layer's weights; a loss with further parameters has these behind them.
        """
        return head.of_layer(vector)


@dataclass(frozen=True)
class Profiled(Joint):
    """L/n, a mean negative log-likelihood with an intercept of the site's own.

    Parameters
    ----------
    nll : callable
        The mean negative log-likelihood of (outputs, targets), convex in the outputs.
    std : float
        s, the standard deviation of the intercept's prior N(0, s²).
    """

    nll: Callable[[Tensor, Tensor], Tensor]
    std: float

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return L/n of outputs (n, outputs); at its minimum a has no slope."""
        return self._at(self.intercept(outputs.detach(), y), outputs, y)

    def _at(self, a: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        return self.nll(outputs + a, y) + a.square().sum() / (2 * self.std**2 * len(outputs))

    def intercept(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return a (outputs,), by Newton's method with halved steps."""
        a, ridge = torch.zeros_like(outputs[0]), self.ridge(outputs)
        value = self._at(a, outputs, y)
        for _ in range(_STEPS):
            slope, bent = slopes_and_hessians(self.nll, outputs + a, y)
            total = slope.sum(0) + ridge @ a
            step = torch.linalg.solve(bent.sum(0) + ridge, total)
            if float(step @ total) < _SMALL * len(outputs):
                return a - step
            size = 1.0
            while not (after := self._at(a - size * step, outputs, y)) < value and size > _SMALL:
                size /= 2
            a, value = a - size * step, after
        return a

    def ridge(self, outputs: Tensor) -> Tensor:
        """Return the precision of the intercept's prior (outputs, outputs)."""
        return torch.eye(outputs.shape[1], dtype=outputs.dtype) / self.std**2

    def hessian(self, features: Tensor, weights: Tensor, y: Tensor) -> Tensor:
        """Return the Schur complement of the Hessian in weights and a, (p, p)."""
        outputs = features @ weights.T
        bent = output_hessians(self.nll, outputs + self.intercept(outputs, y), y)
        inner, across, corner = self._blocks(features, bent)
        return inner - across @ torch.linalg.solve(corner, across.T)

    def scores(self, features: Tensor, weights: Tensor, y: Tensor) -> Tensor:
        """Return each row's gradient less what a takes of it, s − H_wa H_aa⁻¹ s_a, (n, p)."""
        outputs = features @ weights.T
        pull, bent = slopes_and_hessians(self.nll, outputs + self.intercept(outputs, y), y)
        _, across, corner = self._blocks(features, bent)
        return _of_rows(pull, features) - pull @ torch.linalg.solve(corner, across.T)

    def _blocks(self, features: Tensor, bent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the Hessian's blocks in weights, in weights and a, and in a."""
        outputs = bent[:, 0]
        with_ones = torch.cat([features, torch.ones_like(features[:, :1])], 1)
        joint = Full(outputs.shape[1], with_ones.shape[1])
        side = joint.outputs * joint.inputs
        matrix = unpacked(joint.expand(with_ones, bent)["precision"], side)
        last = torch.arange(side) % joint.inputs == joint.inputs - 1
        corner = matrix[last][:, last] + self.ridge(outputs)
        return matrix[~last][:, ~last], matrix[~last][:, last], corner


class Head:
    """A client's data as its network's last layer sees them.

    Attributes
    ----------
    layer : nn.Linear
        The layer; `weights` are its weight and bias as a matrix (outputs, inputs + 1), float64.
    features : Tensor
        Its inputs, with a 1 for the bias, (n, inputs + 1), float64.

    Raises
    ------
    SettingError
        If the network does not end in a linear layer, or if more of it trains.
    """

    def __init__(self, local: Local) -> None:
        self.local, self.layer = local, _last(local.model)
        self.features = self._through()

    @property
    def weights(self) -> Tensor:
        """The layer's weight, and its bias as the last column."""
        parts = [self.layer.weight.detach()]
        if self.layer.bias is not None:
            parts.append(self.layer.bias.detach()[:, None])
        return torch.cat(parts, 1).double()

    @weights.setter
    def weights(self, matrix: Tensor) -> None:
        with torch.no_grad():
            self.layer.weight.copy_(matrix[:, : self.layer.in_features])
            if self.layer.bias is not None:
                self.layer.bias.copy_(matrix[:, -1])

    def loss(self, weights: Tensor) -> Tensor:
        """Return the summed negative log-likelihood, in nats."""
        return self._of(self.features @ weights.T)

    def gradient(self, weights: Tensor) -> Tensor:
        """Return the gradient of `loss`, (outputs, inputs + 1)."""
        return self.loss_and_gradient(weights)[1]

    def loss_and_gradient(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return `loss` and its gradient, in one pass."""
        outputs = (self.features @ weights.T).requires_grad_()
        with torch.enable_grad():
            loss = self._of(outputs)
            (pull,) = torch.autograd.grad(loss, outputs)
        return loss.detach(), pull.T @ self.features

    def curvature(self, structure: Structure, weights: Tensor) -> dict[str, Tensor]:
        """Return the Hessian of `loss` under a structure, as its statistics."""
        nll, y = self.local.nll, self.local.y
        if isinstance(nll, Joint):
            return {"precision": packed(nll.hessian(self.features, weights, y))}
        return structure.expand(self.features, output_hessians(nll, self.features @ weights.T, y))

    def expanded(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `loss` at a vector of all parameters, its gradient (p,) and Hessian (p, p)."""
        nll = self.local.nll
        return nll.expanded(self, vector) if isinstance(nll, Joint) else self.of_layer(vector)

    def of_layer(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `expanded` where the parameters are the layer's weights, row by row."""
        weights = vector.view(-1, self.features.shape[1])
        loss, gradient = self.loss_and_gradient(weights)
        held = self.curvature(Full(*weights.shape), weights)["precision"]
        return loss, gradient.flatten(), unpacked(held, len(vector))

    def _of(self, outputs: Tensor) -> Tensor:
        return self.local.nll(outputs, self.local.y) * len(outputs)

    def _through(self) -> Tensor:
        passed: list[tuple[Tensor, Tensor]] = []
        model = self.local.model.eval()
        handle = self.layer.register_forward_hook(
            lambda layer, entering, leaving: passed.append((entering[0], leaving))
        )
        found = []
        try:
            with torch.no_grad():
                for x in self.local.x.split(_AT_ONCE):
                    passed.clear()
                    outputs = model(scale_pixels(x))
                    if len(passed) != 1 or outputs is not passed[0][1]:
                        allowed = "a network that ends in its linear layer, for inference=laplace"
                        raise SettingError("model", type(model).__name__, allowed)
                    found.append(passed[0][0].double())
        finally:
            handle.remove()
        features = torch.cat(found)
        if self.layer.bias is not None:
            features = torch.cat([features, features.new_ones(len(features), 1)], 1)
        return features


def output_hessians(nll: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, y: Tensor) -> Tensor:
    """Return the Hessians of every example's loss by its outputs, (n, outputs, outputs)."""
    return slopes_and_hessians(nll, outputs, y)[1]


def slopes_and_hessians(
    nll: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return every example's slopes by its outputs, (n, outputs), beside `output_hessians`."""
    outputs = outputs.detach().requires_grad_()
    with torch.enable_grad():
        loss = nll(outputs, y) * len(outputs)
        (pull,) = torch.autograd.grad(loss, outputs, create_graph=True)
        rows = [
            torch.autograd.grad(each.sum(), outputs, retain_graph=True)[0]
            for each in pull.unbind(1)
        ]
    return pull.detach(), torch.stack(rows, 1)


def row_scores(
    nll: Callable[[Tensor, Tensor], Tensor], features: Tensor, weights: Tensor, y: Tensor
) -> Tensor:
    """Return each row's part of the gradient of n times a loss, (n, p), weights row by row."""
    if isinstance(nll, Profiled):
        return nll.scores(features, weights, y)
    return _of_rows(slopes_and_hessians(nll, features @ weights.T, y)[0], features)


def row_weights(nll: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, y: Tensor) -> Tensor:
    """Return each row's weights in the Hessian of n times a loss, (n, outputs)."""
    if isinstance(nll, Profiled):
        return row_weights(nll.nll, outputs + nll.intercept(outputs, y), y)
    return output_hessians(nll, outputs, y).diagonal(dim1=1, dim2=2)


def _of_rows(pull: Tensor, features: Tensor) -> Tensor:
    return (pull[:, :, None] * features[:, None]).flatten(1)


def _last(model: nn.Module) -> nn.Linear:
    """Return the last linear layer, which alone may train."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    allowed = "a network of which the last linear layer alone trains, as of model=linear, "
    allowed += "for inference=laplace"
    if not layers:
        raise SettingError("model", type(model).__name__, allowed)
    own = {id(parameter) for parameter in layers[-1].parameters()}
    others = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in own]
    if others:
        raise SettingError("model", f"{others[0]!r} trains too", allowed)
    return layers[-1]
