"""Mean-field variational inference with the natural gradient for the variances.

The objective, the draws and the means' SGD are those of `variational`,

    NELBO(q) = E_q[mean NLL] + KL(q ‖ prior) / ess,      ess = n_k / kl_weight,

but a variance follows its natural gradient, on a scale that the data set. With the precision s =
1/v, the prior's s₀ and g = ∂E_q[mean NLL]/∂(log v) the NELBO is least at

    s* = s₀ + 2 ess g / v        (∂E/∂v = g/v),

and a step moves a part ρ = `log_var_lr` of the way, G = s* − s, with the second-order term that
keeps s positive whatever the noise in g:

    s ← s + ρ G + ρ² G² / (2 s) = s (1 + δ + ½ δ²),      δ = ρ G / s = 2 ρ ess ∂NELBO/∂(log v).

|δ| is at most 1: below −1 the parabola would turn back up, and from a variance e¹⁰ times the
optimum's one step would pass it by far. A variance too large thus falls by up to a factor 2.5 a
step; one too small grows by ρ in log units a step, as under Adam.

ρ is also what averages the noise of one batch's g, over 1/ρ steps. In a linear layer of fan-in D
that noise is, in units of s*, about √(ess / (D · batch_size)); `ivon` has the same without the D.
In a network that starts untrained, ρ must leave the means time: where variances are optimal
before there are features, the optimum is the prior. On Fashion-MNIST, some 200 steps per round,
0.001 to 0.003 train well and 0.01 is too fast unless the variances start small (e⁻⁹).

References: Khan and Rue 2023 (the Bayesian learning rule); Lin, Schmidt and Khan 2020 (the
improved rule: the second-order term); Kingma, Salimans and Welling 2015 (local
reparameterisation).
"""

from __future__ import annotations

from torch import Tensor

from fedbary.inference import Local, Training
from fedbary.inference._parameters import NaturalParameters
from fedbary.inference._update import Update, inferred
from fedbary.inference.shared.vectors import Gaussians, effective_size, scale_precision

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

    def __init__(self, q: Gaussians, training: Training, ess: float) -> None:
        super().__init__(q, training, 1 / ess)
        self.ess = ess

    def rate(self, step: int) -> float:
        """Return 2 ρ ess."""
        return 2 * self.training.log_var_lr * self.ess

    def move(self, grad: Tensor, rate: float | Tensor) -> None:
        """Scale the precisions by δ, the rate times the gradient."""
        scale_precision(self.q.log_vars.value, grad.mul_(rate))
