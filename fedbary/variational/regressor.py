"""The regression networks: linear, or one hidden layer of ReLUs; the last n layers variational."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.variational.layers import VariationalLinear, reset_layer

HIDDEN_UNITS = 50
"""Hidden units of the `mlp` of FedAG; 100 for the largest of its sets."""


class Regressor(nn.Module):
    """ŷ = wᵀ ReLU(W x + b) + c, or ŷ = wᵀ x + c without hidden units, with a noise variance.

    The layers are `hidden` and `output`. Features and targets are standardised.

    Parameters
    ----------
    features
        D, at least 1.
    hidden
        Hidden units; 0 is the linear model.
    bayesian_layers
        n: the last n layers have Gaussian weights; 0 is a plain network.
    noise
        Variance of the noise. A number: fixed. "learned": one number, the tensor `log_noise_var`,
        initialised to variance 1. "heteroscedastic": a function of x, the second output. "none": no
        noise.

    Raises
    ------
    SettingError
        If a number is out of its range.
    """

    log_noise_var: Tensor

    def __init__(
        self,
        features: int,
        hidden: int = HIDDEN_UNITS,
        bayesian_layers: int = 0,
        noise: float | Literal["learned", "heteroscedastic", "none"] = "learned",
    ) -> None:
        super().__init__()
        if features < 1:
            raise SettingError("features", features, "at least 1")
        if hidden < 0:
            raise SettingError("hidden_units", hidden, "a whole number from 0")
        sizes = {"hidden": (features, hidden)} if hidden else {}
        sizes["output"] = (hidden or features, 1 + (noise == "heteroscedastic"))
        if bayesian_layers not in range(len(sizes) + 1):
            allowed = f"a whole number from 0 to the {len(sizes)} layers of the network"
            raise SettingError("bayesian_layers", bayesian_layers, allowed)
        for index, (name, size) in enumerate(sizes.items()):
            variational = index >= len(sizes) - bayesian_layers
            self.add_module(name, (VariationalLinear if variational else nn.Linear)(*size))
        if noise == "learned":
            self.log_noise_var = nn.Parameter(torch.zeros(()))
        elif not isinstance(noise, str) and noise > 0:
            self.register_buffer("log_noise_var", torch.tensor(math.log(noise)))
        elif noise not in ("heteroscedastic", "none"):
            raise SettingError(
                "noise", noise, "learned, heteroscedastic, none, or a number above 0"
            )

    def reset(self, init_log_var: float, seed: int) -> None:
        """Initialise every layer from a seed; see `fedbary.variational.layers.reset_layer`."""
        generator = Generator().manual_seed(seed)
        for layer in self.children():
            reset_layer(layer, init_log_var, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return mean and log-variance of the target, (batch, 2), for features (batch, D).

        A network without noise returns only means, (batch, 1).
        """
        for name, layer in self.named_children():
            x = layer(x)
            if name == "hidden":
                x = functional.relu(x)
        if hasattr(self, "log_noise_var"):
            x = torch.cat([x, self.log_noise_var.expand_as(x)], 1)
        return x


def gaussian_nll(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean of ½ [log 2π + log v + (y − m)² / v], in nats.

    Parameters
    ----------
    outputs
        Means and log-variances, (batch, 2), as a `Regressor` gives them.
    y
        Targets, (batch,).
    """
    mean, log_var = outputs.unbind(1)
    squares = (y - mean).square() * torch.exp(-log_var)
    return 0.5 * (math.log(2 * math.pi) + log_var + squares).mean()


def outputs(networks: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the answers of M networks, as `Regressor.forward` does, (M, N, 1 or 2).

    Parameters
    ----------
    networks
        Tensors of a point-weight `Regressor` by name, stacked: (M, *shape).
    x
        Features, (N, D), or for each network its own, (M, N, D).
    """
    x = x.expand(len(networks["output.weight"]), *x.shape[-2:])
    for layer in ("output",) if is_linear(networks) else ("hidden", "output"):
        weight, bias = networks[f"{layer}.weight"], networks[f"{layer}.bias"]
        x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        if layer == "hidden":
            x = functional.relu(x)
    if "log_noise_var" in networks:
        x = torch.cat([x, networks["log_noise_var"].view(-1, 1, 1).expand_as(x)], 2)
    return x


def moments(networks: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means and noise variances, (M, N) each, of `outputs`; 0 without a noise."""
    answers = outputs(networks, x).double()
    mean, log_noise_vars = answers[..., 0], answers[..., 1:]
    return mean, log_noise_vars.exp().sum(-1)


def is_linear(tensors: Mapping[str, Tensor]) -> bool:
    """Say whether a `Regressor`'s tensors are those of the linear model."""
    return "hidden.weight" not in tensors
