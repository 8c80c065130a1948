"""The networks that classify rows: linear, or one hidden layer of ReLUs."""

from __future__ import annotations

from torch import Generator, nn

from fedbary.errors import SettingError
from fedbary.layers import VariationalLinear, reset_layer
from fedbary.tables import Layout

MODELS = ("mlp", "logistic")


def make_model(
    layout: Layout,
    model: str,
    hidden_units: int,
    bayesian_layers: int,
    init_log_var: float,
    seed: int,
) -> nn.Sequential:
    """Return a network for the federation's rows, initialised from a seed.

    logits = V ReLU(W x + b) + c for an ``mlp``, logits = V x + c for ``logistic``: of standardised
    features (batch, D) logits (batch, K). The layers are `hidden` and `output`. Logistic
    regression has a row of weights for each class, of two classes too, so that the prior treats
    the classes alike.

    Parameters
    ----------
    layout
        Whose features and classes it takes.
    model
        ``mlp`` or ``logistic``.
    hidden_units
        Of the mlp, at least 1.
    bayesian_layers
        n: how many of the last layers have Gaussian weights; 0 is a plain network.
    init_log_var
        Log-variance that Gaussian weights start from.

    Raises
    ------
    SettingError
        If there is no such model, or a number is out of its range.
    """
    if model not in MODELS:
        raise SettingError("model", model, " or ".join(MODELS))
    if model == "mlp" and hidden_units < 1:
        raise SettingError("hidden_units", hidden_units, "at least 1 for an mlp; or model=logistic")
    features, classes = len(layout.features), len(layout.classes)
    sizes = {"hidden": (features, hidden_units)} if model == "mlp" else {}
    sizes["output"] = (hidden_units if model == "mlp" else features, classes)
    if bayesian_layers not in range(len(sizes) + 1):
        allowed = f"a whole number from 0 to the {len(sizes)} layers of the model {model}"
        raise SettingError("bayesian_layers", bayesian_layers, allowed)
    network, generator = nn.Sequential(), Generator().manual_seed(seed)
    for index, (name, size) in enumerate(sizes.items()):
        variational = index >= len(sizes) - bayesian_layers
        layer = (VariationalLinear if variational else nn.Linear)(*size)
        reset_layer(layer, init_log_var, generator)
        network.add_module(name, layer)
        if name == "hidden":
            network.add_module("relu", nn.ReLU())
    return network
