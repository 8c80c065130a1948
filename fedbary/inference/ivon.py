"""IVON, the improved variational online Newton method.

The objective is that of `variational`,

    NELBO(q) = E_q[mean NLL] + KL(q ‖ prior) / ess,      ess = n_k / kl_weight,

and the variances are those of a Newton method: with h the expected curvature of the mean NLL and
δ = s₀/ess what the prior N(m₀, 1/s₀) adds to it,

    v = 1 / (ess (h + δ)).

A step draws one ε per weight, shared by the batch, takes the gradient there, and estimates the
curvature by Price's theorem:

    θ = m + √v ε,      ĝ = ∇ mean NLL(θ),      ĥ = ĝ (θ − m) / v,
    h ← h + ρ (ĥ − h) + ½ ρ² (ĥ − h)² / (h + δ),      ρ = 1 − β₂ = `log_var_lr`,
    u ← β₁ u + ĝ + δ (m − m₀) + weight_decay · m,      β₁ = `momentum`,
    m ← m − lr min(c / (h + δ), 1) u / (1 − β₁ᵗ),      c = the mean of h + δ over the weights.

Published IVON differs in three points:

- It has a constant hess_init + δ in place of the factor c. With c, `lr` has SGD's meaning for a
  weight of mean curvature, whatever the received variances.
- It has no bound on a weight's rate. Here a weight of small curvature takes SGD's steps, one of
  large curvature shorter ones, and no rate is so large that the prior's pull alone would diverge. h
  is noisy. A weight with a large estimate raises c, and so the rates of all others, and then their
  h. With 10 lr allowed, 40 weights went to NaN at rates where `variational` and `natural_gradient`
  converge; with 3 lr they did at twice these rates.
- Here (ĥ − h) ρ / (h + δ) is held to [−1, 1], see `natural_gradient`.

The deterministic tensors take SGD with momentum.

The variance is the only state: h + δ = 1/(ess v) as received, so a round goes on where the last one
ended. Some rules make a variance above the prior's. Then h < 0 at first, which is harmless because
h + δ > 0, and the variance falls again, because every target s₀ + ess ĥ contains s₀. Times ess, h's
recursion is that of the precision in `natural_gradient`, with ½ ĝ (θ − m) as the estimate of
∂E_q[mean NLL]/∂(log v): the code is the same.

The batch shares one draw, so ĥ is noisy: by about √(ess / batch_size) in units of h + δ, averaged
over 1/ρ steps. For log-variances with an error below one, ρ must be at most 2 batch_size / ess: 1/ρ
is half of 1/kl_weight epochs. A larger ρ leaves them too low. For the same reason variances should
start well below the squared means, at e⁻⁷ to e⁻⁹.

Reference: Shen et al. 2024 (variational learning is effective for large deep networks), with
Lin, Schmidt and Khan 2020 for the term in ρ².
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedbary.gaussian import variance_power
from fedbary.inference import Local, NaturalParameters
from fedbary.inference._steps import Momentum, Steps, Vectors, effective_size, scale_precision
from fedbary.variational.layers import normal_like

MAX_GAIN = 1.0
"""The largest rate of a weight, in units of `lr`."""

Parameters = NaturalParameters


def fit(local: Local) -> dict[str, float]:
    """Minimise the NELBO over the model's posterior, in place; the module's text has the formulas.

    As `fedbary.inference.variational.fit`, except that `training.momentum` is β₁, and
    `training.log_var_lr` is 1 − β₂: 0 freezes the variances, and 1 is the most.

    Raises
    ------
    SettingError
        If `training.kl_weight` is 0: ess would be infinite and every variance 0.
    """
    training, ess = local.training, effective_size(local.training, len(local.x))
    q = Vectors(local.model, local.prior)
    sgd = Momentum(q, training, 1 / ess)
    points, log_var, num_gaussian = q.points, q.log_vars.value, len(q.mean)
    half_precision = 0.5 / ess * q.prior_precision
    var, offset = torch.zeros_like(q.mean), torch.zeros_like(q.mean)

    @contextmanager
    def drawn(x: Tensor, y: Tensor) -> Iterator[Tensor]:
        var.copy_(variance_power(log_var, 1))
        torch.mul(normal_like(var, steps.batches.noise), var.sqrt(), out=offset)
        with q.moved(offset):
            yield local.nll(local.model(x), y)

    steps = Steps(local, points, loss=drawn)
    for number, _ in enumerate(steps, 1):
        if training.log_var_lr > 0:
            grad = offset.mul_(points.grad[:num_gaussian]).sub_(1 / ess).mul_(0.5)
            grad.addcmul_(var, half_precision)
            scale_precision(log_var, grad.mul_(2 * training.log_var_lr * ess))
            var.copy_(variance_power(log_var, 1))
        points.value[num_gaussian:].sub_(sgd.update()[num_gaussian:], alpha=training.lr)
        gain = var.mul_(var.reciprocal().mean()).clamp_(max=MAX_GAIN)
        unbiased = 1 - training.momentum**number
        gain = torch.minimum(gain, unbiased * sgd.most[:num_gaussian])
        q.mean.addcmul_(sgd.velocity[:num_gaussian], gain, value=-training.lr / unbiased)
    return {**steps.metrics, "kl": q.kl()}
