"""Mean-field variational inference with the natural gradient for the variances.

The objective, the draws and the means' SGD are those of `variational`,

    NELBO(q) = E_q[mean NLL] + KL(q ‖ prior) / ess,      ess = n_k / kl_weight,

but a variance follows its natural gradient, so the data set the scale of its steps. With the
precision s = 1/v, the prior's s₀ and g = ∂E_q[mean NLL]/∂(log v) the NELBO is least at

    s* = s₀ + 2 ess g / v        (∂E/∂v = g/v),

A step moves a part ρ = `log_var_lr` of the way G = s* − s. A second-order term keeps s positive
whatever the noise in g:

    s ← s + ρ G + ρ² G² / (2 s) = s (1 + δ + ½ δ²),      δ = ρ G / s = 2 ρ ess ∂NELBO/∂(log v).

|δ| is held to at most 1: below −1 the parabola turns up again, and with a variance e¹⁰ times the
optimum one step would go far beyond it. So a variance that is too large falls by up to a factor of
2.5 per step. One that is too small grows by ρ in log units per step, as under Adam.

1/ρ is also the number of steps over which the noise of one batch's g is averaged. In a linear layer
of fan-in D that noise is about √(ess / (D · batch_size)) in units of s*; `ivon` has the same
without the D. In an untrained network, ρ must leave the means time: before there are features, the
optimal variances are the prior's. On Fashion-MNIST, with some 200 steps per round, 0.001 to 0.003
train well. 0.01 is too fast unless the variances start small (e⁻⁹).

References: Khan and Rue 2023 (the Bayesian learning rule); Lin, Schmidt and Khan 2020 (the
improved rule: the second-order term); Kingma, Salimans and Welling 2015 (local
reparameterisation).
"""

from __future__ import annotations

from torch import Tensor

from fedbary.inference import Local, NaturalParameters, Training
from fedbary.inference._steps import Update, Vectors, effective_size, inferred, scale_precision

Parameters = NaturalParameters


def fit(local: Local) -> dict[str, float]:
    """Minimise the NELBO over the model's posterior, in place; the module's text has the formulas.

    As `fedbary.inference.variational.fit`, except that `training.log_var_lr` is ρ, the part of the
    way to its optimum that a precision moves in a step. 0 freezes the variances; above 0 up to 1
    trains them.

    Raises
    ------
    SettingError
        If `training.kl_weight` is 0: ess and with it the optimal precision would be infinite.
    """
    return inferred(local, NaturalUpdate, effective_size(local.training, len(local.x)))


class NaturalUpdate(Update):
    """The update whose precisions go a part of the way to their optimum, given ess."""

    def __init__(self, q: Vectors, training: Training, ess: float) -> None:
        super().__init__(q, training, 1 / ess)
        self.ess = ess

    def rate(self, step: int) -> float:
        """Return 2 ρ ess."""
        return 2 * self.training.log_var_lr * self.ess

    def move(self, grad: Tensor, rate: float) -> None:
        """Scale the precisions by δ, the rate times the gradient."""
        scale_precision(self.q.log_vars.value, grad.mul_(rate))
