"""Local inference: from the global posterior and a client's data to that client's posterior.

A method is a module of this package with one function

    fit(local) -> dict[str, float]

which trains `local.model` in place, starting from the posterior it holds, and a frozen dataclass
`Parameters` of the settings that it owns. Those of `PosteriorParameters` reach it in `local`. One
that declares others is called with them, fit(local, parameters). It may have a second function,
prepare(model) -> None, for what a fresh network needs before the first round. The module's name is
the method's name in the settings; nothing else has to be registered. Shared code lies in `shared/`,
or in a module whose name starts with an underscore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fedbary.aggregation.covariance import Quadratic
from fedbary.data.batches import Augment
from fedbary.data.mechanism import Release, drawn
from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior
from fedbary.parts.parameters import (
    BelowOne,
    Checked,
    Count,
    LogVar,
    NotNegative,
    Positive,
    declared,
    parameters_of,
)
from fedbary.parts.registry import modules


@dataclass(frozen=True)
class StepParameters(Checked):
    """The batches, and SGD of means and point weights.

    A method that does not use the run's local inference trains by these.

    Parameters
    ----------
    local_epochs
        Passes of a client over its data in a round.
    batch_size
        Examples a step.
    lr
        Step size of SGD.
    lr_schedule
        constant; cosine: the step size falls from lr in round 1 towards 0 after the last round. The
        default is constant with methods that sample along their steps, such as SGLD.
    momentum
        Momentum of SGD.
    weight_decay
        Weight decay of means and deterministic weights, in addition to the prior.
    max_grad_norm
        Gradients of the mean cross-entropy are clipped to this norm; none: they are not.
    """

    local_epochs: Count = 5
    batch_size: Count = 16
    lr: Positive = 0.02
    lr_schedule: Literal["constant", "cosine"] = "cosine"
    momentum: BelowOne = 0.9
    weight_decay: NotNegative = 0.00001
    max_grad_norm: Positive | None = 5.0

    def lr_in(self, server_round: int, rounds: int) -> float:
        """Return the rate of the means in a round; cosine: lr · ½ (1 + cos(π (t − 1)/rounds))."""
        if self.lr_schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * (server_round - 1) / rounds))


@dataclass(frozen=True)
class PriorParameters(StepParameters):
    """The steps, and the prior.

    Parameters
    ----------
    prior
        normal: N(0, prior_std²) in every round. global: the last global posterior; round 1 takes
        normal. earlier: the posterior of the run that start_from names, in every round.
        earlier_only: the same, and the network begins as a new one.
    prior_std
        Standard deviation of the prior N(0, prior_std²).
    """

    prior: Literal["normal", "global", "earlier", "earlier_only"] = "normal"
    prior_std: Positive = 1.0


@dataclass(frozen=True)
class PosteriorParameters(PriorParameters):
    """The steps, the prior and its weight, and how log-variances begin and move.

    Parameters
    ----------
    kl_weight
        Weight of KL(q‖prior)/n_k beside the mean cross-entropy. share: n_k/n, the client's share of
        all examples. All clients together then count the prior once. For linear models RKLB then
        has the exact posterior after one round if features are orthogonal at each client, and its
        variances in any case.
    init_log_var
        Initial log-variance of the variational weights.
    log_var_lr
        Step size of log-variances: Adam's, or SGD's with clamped_sgd. With ivon and
        natural_gradient it is the part of its way that a precision moves in a step. 0 freezes them.
    """

    kl_weight: Literal["share"] | NotNegative = 0.001
    init_log_var: LogVar = -7.0
    log_var_lr: NotNegative = 0.003


@dataclass(frozen=True)
class NaturalParameters(PosteriorParameters):
    """Those of natural gradients, which a `kl_weight` of 0 would make infinite."""

    kl_weight: Literal["share"] | Positive = 0.001


__all__ = [
    "INFERENCE",
    "Fit",
    "Local",
    "PosteriorParameters",
    "Prior",
    "StepParameters",
    "Training",
    "local_method",
    "prepare",
]

Prior = Posterior | Factor | Quadratic | float
"""A prior: a posterior (the previous global one, say), the standard deviation of N(0, std²), or a
factor. A factor, such as a cavity, need not be a density. A last layer's point weights have a
quadratic (inference=laplace).
"""


@dataclass(frozen=True)
class Training:
    """Settings of a client's training.

    Parameters
    ----------
    epochs, batch_size
        Passes over the client's data, and examples a step.
    lr, momentum, weight_decay
        SGD of the means and of the deterministic tensors; the rate of a weight whose prior would
        make it unstable is less.
    log_var_lr
        About how far a log-variance that is much too small rises in a step: Adam's rate in
        `variational`, in `natural_gradient` and `ivon` the part of the way that a precision moves.
        In `clamped_sgd` Step size of SGD. 0 freezes them.
    kl_weight
        Weight of KL(q‖prior)/n_k beside the mean negative log-likelihood; 0 is for `variational`.
    max_grad_norm
        A longer gradient of the mean negative log-likelihood, all means and deterministic tensors
        together, is shortened to this norm; None: never.
    proximity
        μ of the term ½ μ ‖θ − θ₀‖² beside the mean negative log-likelihood, which holds means and
        deterministic tensors to where they start.
    """

    epochs: int = 1
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    log_var_lr: float = 0.01
    kl_weight: float = 1.0
    max_grad_norm: float | None = None
    proximity: float = 0.0

    def suited_to(self, model: nn.Module, examples: int) -> Training:
        """Return a training whose every batch has two examples, where a batch norm needs them.

        The batch size is the least, from `batch_size` on, that leaves no last batch of one.
        """
        size = self.batch_size
        if examples > 1 and any(isinstance(module, _BatchNorm) for module in model.modules()):
            while (examples % size or size) == 1:
                size += 1
        return replace(self, batch_size=size)


@dataclass(frozen=True, eq=False)
class Local:
    """A client's model, data and settings in a round.

    Parameters
    ----------
    model : nn.Module
        The network, called as `model(inputs)`; it is trained in place. Its parameters `<name>_mean`
        and `<name>_log_var` are a Gaussian, which its layers draw as `fedbary.variational.layers`
        says.
    x, y : Tensor
        Inputs and targets (n_k, …), on the model's device; of images uint8 or float.
    nll : callable
        Mean negative log-likelihood of (outputs, targets), in nats.
    inference : callable
        The local inference that the run has chosen.
    training : Training
        Epochs, batch size and rates of the round.
    prior : Prior
        The prior of the Gaussian tensors: a `Posterior` with their names, say, or the std of
        N(0, std²).
    round : int
        From 1.
    seed : int
        The source of every draw of this client in this round: order, augmentation, noise.
    augment : Augment
        Random changes of images, see `fedbary.data.batches.batch_source`.
    part : float
        Part of all clients' examples that lies at the round's clients; 1: unknown.
    share : float
        Its number of examples, in multiples of the mean client's; 1: unknown.
    raw : Tensor, optional
        The inputs (n_k, …) as the client holds them, before a network makes features of them.
        None: they are `x`.
    release : callable
        Return the numbers of a `Release`; a client with a memory returns the same ones again.
    correct : callable, optional
        Changes the gradient of each batch's mean NLL in place, before SGD takes it. That is a
        vector (d,) of the means, then the deterministic tensors, as `_steps.Vectors` has them.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    nll: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    inference: Fit = field(default_factory=lambda: local_method("variational"))
    training: Training = field(default_factory=Training)
    prior: Prior = 1.0
    round: int = 1
    seed: int = 0
    augment: Augment = False
    part: float = 1.0
    share: float = 1.0
    raw: Tensor | None = None
    release: Callable[[Release], Mapping[str, Tensor]] = drawn
    correct: Callable[[Tensor], object] | None = None

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Let the network hold the tensors of its state dict that are among these."""
        held = {name: tensors[name] for name in self.model.state_dict()}
        self.model.load_state_dict(held)

    def infer(self, prior: Prior) -> dict[str, float]:
        """Train the network by the local inference under a prior; return metrics of the fit."""
        return self.inference(replace(self, prior=prior))

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the network's state dict."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


Fit = Callable[[Local], dict[str, float]]
"""A local method: it trains `local.model` in place, and returns metrics of the fit. They are
`train_nll`, the mean over the last epoch in nats, and for posteriors `kl`, KL(q ‖ prior) after it
in nats.
"""


INFERENCE = modules("inference")
"""Names of the local methods."""


def local_method(name: str, words: Mapping[str, object] = MappingProxyType({})) -> Fit:
    """Return the local method of that name, with the values of its own parameters that are given.

    Parameters
    ----------
    name
        One of `INFERENCE`.
    words
        Values of its parameters by name, such as a run's settings.

    Raises
    ------
    SettingError
        If there is none of that name, which the message lists, or a value is out of its range.
    """
    module = _module(name)
    if declared(module.Parameters).keys() <= declared(PosteriorParameters).keys():
        fit: Fit = module.fit
        return fit
    return partial(module.fit, parameters=parameters_of(module.Parameters, words))


def prepare(name: str, model: nn.Module) -> None:
    """Change a fresh network as the local method of that name asks; most ask for nothing."""
    change: Callable[[nn.Module], None] | None = getattr(_module(name), "prepare", None)
    if change is not None:
        change(model)


def _module(name: str) -> ModuleType:
    if name not in INFERENCE:
        raise SettingError("inference", name, ", ".join(INFERENCE))
    return import_module(f"{__name__}.{name}")
