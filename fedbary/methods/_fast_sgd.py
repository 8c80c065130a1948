"""Point weights of a regression network by stochastic gradients on the squared error.

At batch size 1 a step of these networks is a thousand multiplications, and automatic
differentiation costs hundreds of times as much as they do. Here the gradients are written out in
numpy, in float64. One call is one client's epoch, so it serves a Flower client and a loop over
clients alike. `benchmarks/regression_epoch.py` compares it with the plain loop.

A step on a batch of B examples with errors e_i = ŷ_i − y_i and gradients g_i = ∇ŷ_i is

    w ← w − η Σ e_i g_i,      η = (2 lr / B) / (1 + (2 lr / B) Σ ‖g_i‖²).

Without the second factor (`damped=False`) this is the plain SGD of FedAG's Algorithm 1. It diverges
as soon as one row has lr ‖g‖² above 1, as outlying rows have at any useful rate; then nothing but a
rate for the worst row helps. The damped step at B = 1 is the exact proximal step of the linearised
network,

    argmin_w (ŷ + gᵀ(w − w₀) − y)² + ‖w − w₀‖²/(2 lr).

An error shrinks at any rate, and never changes its sign to first order. Small steps are those of
SGD.

References: FedAG (Thorgeirsson and Gauterin 2021), Algorithm 1; Toulis and Airoldi 2017 (implicit
stochastic gradient descent).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor, nn

from fedbary.errors import SettingError
from fedbary.variational.regressor import Regressor


def fit(
    model: Regressor,
    x: Tensor,
    y: Tensor,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
    damped: bool = True,
) -> dict[str, float]:
    """Train a network of point weights in place.

    Parameters
    ----------
    model
        A `Regressor` without variational layers and with one output.
    x, y
        The client's standardised features (n, D) and targets (n,).
    epochs, batch_size
        Passes over the data in an order from `seed`, and examples a step.
    lr
        lr, of the mean squared error of a batch.
    seed
        Source of the order.
    damped
        True: the step is damped, see the module's text.

    Returns
    -------
    dict
        `train_mse`: mean squared error of the trained network on (x, y).

    Raises
    ------
    SettingError
        If the training diverges.
    """
    layers = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
    if len(layers) < len(list(model.children())):
        raise SettingError("bayesian_layers", "variational layers", "0, for point weights")
    weights = [np.column_stack([_array(layer.weight), _array(layer.bias)]) for layer in layers]
    step = _linear_step if len(layers) == 1 else _network_step
    inputs, targets = np.column_stack([_array(x), np.ones(len(x))]), _array(y)
    squares = np.square(inputs).sum(1)
    order = Generator().manual_seed(seed)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(epochs):
            shuffled = torch.randperm(len(x), generator=order).numpy()
            rows, norms, aims = inputs[shuffled], squares[shuffled], targets[shuffled]
            for start in range(0, len(x), batch_size):
                part = slice(start, start + batch_size)
                step(weights, rows[part], norms[part], aims[part], lr, damped)
    for layer, trained in zip(layers, weights, strict=True):
        _store(layer, trained)
    with torch.no_grad():
        mse = float((model(x)[:, 0] - y).double().square().mean())
    if not np.isfinite(mse):
        raise SettingError("lr", lr, "a smaller rate: with this one the training diverges")
    return {"train_mse": mse}


def _linear_step(
    weights: list[np.ndarray],
    x: np.ndarray,
    squares: np.ndarray,
    y: np.ndarray,
    lr: float,
    damped: bool,
) -> None:
    """Step on the matrix (1, D + 1) of the output, in place.

    x is (B, D + 1), of which the last column is 1 for the bias, and `squares` ‖x_i‖², (B,).
    """
    (output,) = weights
    scale = 2 * lr / len(y)
    if damped:
        scale /= 1 + scale * squares.sum()
    output -= scale * (x.dot(output[0]) - y).dot(x)


def _network_step(
    weights: list[np.ndarray],
    x: np.ndarray,
    squares: np.ndarray,
    y: np.ndarray,
    lr: float,
    damped: bool,
) -> None:
    """Step on the matrices (H, D + 1) and (1, H + 1), in place; the rest as of `_linear_step`."""
    w, v = weights[0].T, weights[1][0]
    hidden = np.ones((len(y), len(v)))
    np.maximum(x.dot(w), 0, out=hidden[:, :-1])
    slopes = (hidden[:, :-1] > 0) * v[:-1]
    scale = 2 * lr / len(y)
    if damped:
        norms = np.vdot(slopes * squares[:, None], slopes) + np.vdot(hidden, hidden)
        scale /= 1 + scale * norms
    errors = scale * (hidden.dot(v) - y)
    v -= errors.dot(hidden)
    slopes *= errors[:, None]
    w -= x.T.dot(slopes)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def _store(layer: nn.Linear, trained: np.ndarray) -> None:
    """Put a matrix (out, in + 1) into a layer."""
    with torch.no_grad():
        values = torch.from_numpy(trained)
        layer.weight.copy_(values[:, :-1])
        layer.bias.copy_(values[:, -1])
