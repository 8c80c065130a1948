"""Methods that see all data at once, for comparison: each predicts with one `Forecast`.

Features and targets are standardised tensors: x (n, D) and y (n,) to train on, x_new (N, D) to
predict.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedbary.gaussian import Posterior
from fedbary.inference import Local, Training
from fedbary.inference.variational import fit
from fedbary.predictive.networks import drawn
from fedbary.predictive.prediction import Forecast
from fedbary.predictive.predictor import forecast
from fedbary.seeds import derive_seed
from fedbary.variational.regressor import Regressor, gaussian_nll, outputs


def bayesian_linear(x: Tensor, y: Tensor, x_new: Tensor) -> Forecast:
    """Predict by Bayesian linear regression; both precisions maximise the evidence.

    Source: Bishop 2006, sections 3.3 and 3.5, by scikit-learn's BayesianRidge.
    """
    from sklearn.linear_model import BayesianRidge

    model = BayesianRidge().fit(x.double().numpy(), y.double().numpy())
    mean, std = (torch.from_numpy(a) for a in model.predict(x_new.double().numpy(), True))
    noise = torch.full_like(mean, 1 / model.alpha_)
    return Forecast(mean, (std.square() - noise).clamp_min(0), noise)


def mean_field(
    x: Tensor,
    y: Tensor,
    x_new: Tensor,
    hidden: int,
    training: Training,
    seed: int,
    init_log_var: float = -7.0,
    samples: int = 100,
) -> Forecast:
    """Predict by mean-field variational inference with prior N(0, 1) and a learned noise.

    Parameters
    ----------
    hidden
        Hidden units; 0 is the linear model.
    training
        As in `fedbary.inference.variational`.
    seed
        Seed of the initial weights, the order and the draws.
    init_log_var
        Log-variance from which the weights start.
    samples
        Networks drawn for the prediction.
    """
    model = Regressor(x.shape[1], hidden, bayesian_layers=2 if hidden else 1)
    model.reset(init_log_var, derive_seed(seed, "model"))
    fit(Local(model, x, y, gaussian_nll, training=training, seed=derive_seed(seed, "train")))
    generator = Generator().manual_seed(derive_seed(seed, "predict"))
    networks = drawn(Posterior.from_state_dict(model.state_dict()), samples, generator)
    return forecast(networks, x_new)


def deep_ensemble(
    x: Tensor,
    y: Tensor,
    x_new: Tensor,
    hidden: int,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
    members: int = 5,
) -> Forecast:
    """Predict by the moments of heteroscedastic networks, each trained by Adam on its Gaussian NLL.

    The members differ in initial weights and in the order of their batches, and train side by side.
    The paper's adversarial examples are left out.

    Parameters
    ----------
    hidden
        Hidden units; 0 is the linear model.
    epochs, batch_size, lr
        Passes over the data, examples a step, Adam's rate.
    seed
        Seed of the initial weights and the orders.
    members
        Number of networks, 5 in the paper.

    References
    ----------
    Lakshminarayanan, Pritzel and Blundell, Simple and Scalable Predictive Uncertainty Estimation
    Using Deep Ensembles, 2017.
    """
    networks = []
    for member in range(members):
        model = Regressor(x.shape[1], hidden, noise="heteroscedastic")
        model.reset(0.0, derive_seed(seed, "model", member))
        networks.append(model.state_dict())
    stacked = {
        name: torch.stack([network[name] for network in networks]).requires_grad_()
        for name in networks[0]
    }
    optimizer = torch.optim.Adam(stacked.values(), lr)
    order = Generator().manual_seed(derive_seed(seed, "train"))
    for _ in range(epochs):
        shuffled = torch.rand(members, len(x), generator=order).argsort(1)
        for rows in shuffled.split(batch_size, 1):
            optimizer.zero_grad()
            answers = outputs(stacked, x[rows])
            loss = gaussian_nll(answers.flatten(0, 1), y[rows].flatten())
            (members * loss).backward()
            optimizer.step()
    return forecast(stacked, x_new)
