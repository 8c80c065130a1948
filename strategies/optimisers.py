"""Training of variances with an optimiser of your own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedbary.errors import SettingError

from .conventions import Convention, convention_named

EPSILON = 1e-16
"""For Adam's denominator: gradients of scales are often near 1e-7, so 1e-8 would slow them."""


def parameter_groups(
    model: nn.Module,
    lr: float,
    log_var_lr: float,
    convention: str | Convention = "fedbary",
) -> list[dict[str, Any]]:
    """Return a model's parameters as groups for a torch optimiser; scales have rates of their own.

    The gradient of a log-variance is of order 1/n. At the means' rate, or with plain SGD at any
    usual rate, variances stay at their initial values. Use an optimiser whose step does not depend
    on the gradient's size, as in ``Adam(parameter_groups(model, 1e-3, 1e-2))``. Each step then
    moves a log-variance by about `log_var_lr`, whatever the unit of the scale s: a tensor's rate is
    log_var_lr / mean |∂(log v)/∂s| at its present values. You can keep SGD for the means: ``means,
    *scales = parameter_groups(...)``, ``SGD([means])`` and ``Adam(scales)``.

    Parameters
    ----------
    model : torch.nn.Module
        Its frozen parameters are left out.
    lr : float
        Rate of the means and the deterministic tensors.
    log_var_lr : float
        Approximate move of a log-variance in a step; `fedbary.inference.Training` has 0.01.
    convention : str or Convention
        Rule that tells Gaussian parameters, and the unit of their scales, as in the server's
        strategy.

    Returns
    -------
    list of dict
        First the group of means and deterministic tensors, then one for each scale. The groups of
        scales have a small epsilon. They have no weight decay, which would pull variances to 1, or
        to softplus(0)².

    Raises
    ------
    SettingError
        If the convention finds no scale among the trainable parameters, or a rate is not positive.
    """
    for name, rate in (("lr", lr), ("log_var_lr", log_var_lr)):
        if not 0 < rate < float("inf"):
            raise SettingError(name, rate, "a number above 0")
    units = convention_named(convention)
    named = dict(model.named_parameters())
    keys = set(units.pairs(named).values())
    trained = {name: p for name, p in named.items() if p.requires_grad}
    scales = [p for name, p in trained.items() if name in keys]
    if not scales:
        raise SettingError("convention", units, "one by which some of the parameters are scales")
    others = [p for name, p in trained.items() if name not in keys]
    apart = {"weight_decay": 0.0, "eps": EPSILON}
    return [
        {"params": others, "lr": lr},
        *(
            {"params": [scale], "lr": log_var_lr / _slope(scale, units), **apart}
            for scale in scales
        ),
    ]


def _slope(scale: Tensor, convention: Convention) -> float:
    """Return the mean of |∂(log v)/∂s| over a tensor of scales s."""
    s = scale.detach().double().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(convention.to_log_var(s).sum(), s)
    return float(slope.abs().mean())
