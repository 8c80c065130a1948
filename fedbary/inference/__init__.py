"""Local inference: from the global posterior and a client's data to that client's posterior.

A method is a module of this package with one function

    fit(model, x, y, prior, training, seed, augment=False, nll=cross_entropy) -> dict[str, float]

which trains `model` in place, starting from the posterior it holds. It may have a second one,
prepare(model) -> None, for what a fresh network needs before the first round. The module's name is
the method's name in the settings; nothing else has to be registered. A module whose name starts
with an underscore is shared code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Protocol

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbary.data.batches import Augment
from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior
from fedbary.registry import modules

Prior = Posterior | Factor | float
"""A prior: a posterior (the previous global one, say), the standard deviation of N(0, std²), or a
factor, such as a cavity, which need not be a density."""


@dataclass(frozen=True)
class Training:
    """How a client trains.

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
        In `clamped_sgd` SGD's rate. 0 freezes them.
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


class Fit(Protocol):
    """The one signature of local methods."""

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        prior: Prior,
        training: Training,
        seed: int,
        augment: Augment = False,
        nll: Callable[[Tensor, Tensor], Tensor] = ...,
    ) -> dict[str, float]:
        """Train `model` in place on (x, y) and return metrics of the fit."""


INFERENCE = modules("inference")
"""Names of the local methods."""


def local_method(name: str) -> Fit:
    """Return the local method of that name; a SettingError lists the names if there is none."""
    fit: Fit = _module(name).fit
    return fit


def prepare(name: str, model: nn.Module) -> None:
    """Change a fresh network as the local method of that name asks; most ask for nothing."""
    change: Callable[[nn.Module], None] | None = getattr(_module(name), "prepare", None)
    if change is not None:
        change(model)


def _module(name: str) -> ModuleType:
    if name not in INFERENCE:
        raise SettingError("inference", name, ", ".join(INFERENCE))
    return import_module(f"{__name__}.{name}")
