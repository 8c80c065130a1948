"""Predictions by any network, whoever trained it: no run, no Flower.

```python
import fedbary

prediction = fedbary.predict(network, x, samples=50)
print(prediction.probs, prediction.entropy, prediction.epistemic)
print(fedbary.score(prediction, y))
fedbary.reliability_picture(prediction, y).savefig("reliability.png")
```

Three kinds of networks:

- fedbary's Gaussian layers (`fedbary.variational.variational`): networks are drawn from them;
- other Bayesian layers (bayesian-torch, Pyro, dropout that stays on): they draw at every pass;
- a plain network is one network.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor, nn

from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.predictive.networks import (
    Answers,
    answering_draws,
    answering_states,
    batches,
    device_of,
    evaluation,
)
from fedbary.predictive.predictor import (
    Draws,
    Forecast,
    MonteCarlo,
    Prediction,
    Predictive,
    concatenated,
    mixed,
    mixture,
)
from fedbary.seeds import derive_seed
from fedbary.variational import gaussian_layers
from fedbary.variational.layers import seeded

Networks = Posterior | Sequence[Mapping[str, Tensor]]


@torch.inference_mode()
def predict(
    network: nn.Module,
    x: Tensor,
    samples: int = 50,
    networks: Networks | None = None,
    seed: int = 0,
    batch_size: int = 500,
) -> Prediction:
    """Predict classes by the mean softmax of several networks, Σ_s softmax f(x; θ_s) / S.

    Parameters
    ----------
    network : nn.Module
        Returns logits (batch, classes) for a batch, or a tuple that begins with them. It is called
        in evaluation mode, on the device of its tensors, and left as it was.
    x : Tensor
        Inputs (N, …); bytes are divided by 255.
    samples : int
        S, the number of networks to draw.
    networks : Posterior or sequence of state dicts, optional
        A posterior to draw from in place of the network's own layers, such as
        `load(run).posterior`. Or the networks themselves, such as an ensemble's.
    seed : int
        Seed of the draws. Layers that draw weights by themselves draw the same ones in every batch.
    batch_size : int
        Inputs at a time.

    Returns
    -------
    Prediction
        `probs` (N, classes); `entropy`, `epistemic` and `aleatoric` (N,), in nats.

    Raises
    ------
    SettingError
        If there is nothing to draw, the network lacks a tensor of `networks`, or it does not return
        logits.
    """
    parts = _answers(network, x, samples, networks, seed, batch_size)
    if parts[0].ndim != 3 or parts[0].shape[2] < 2:
        held = f"answers of shape (N, {', '.join(map(str, parts[0].shape[2:]))})"
        raise SettingError("network", held, "logits (N, classes) of two classes or more")
    return concatenated([mixture(logits) for logits in parts])


@torch.inference_mode()
def forecast(
    network: nn.Module,
    x: Tensor,
    samples: int = 50,
    networks: Networks | None = None,
    seed: int = 0,
    batch_size: int = 500,
    noise_var: float = 0.0,
) -> Forecast:
    """Predict a number by the first two moments of several networks' answers.

    mean = Σ ŷ_s / S, epistemic = Σ ŷ_s² / S − mean², aleatoric = noise_var + Σ v_s / S.

    Parameters
    ----------
    network : nn.Module
        Returns means (batch,) or (batch, 1) for a batch, in the target's unit; or means and
        log-variances of the noise (batch, 2).
    x, samples, networks, seed, batch_size
        As for `predict`.
    noise_var : float
        Variance of the noise, in the target's unit squared, added to the network's own.

    Returns
    -------
    Forecast
        `mean`, `var`, `epistemic` and `aleatoric`, (N,).

    Raises
    ------
    SettingError
        As for `predict`.
    """
    parts = _answers(network, x, samples, networks, seed, batch_size)
    if parts[0].ndim > 3 or parts[0].shape[2:] not in ((), (1,), (2,)):
        held = f"answers of shape (N, {', '.join(map(str, parts[0].shape[2:]))})"
        raise SettingError("network", held, "(N,), (N, 1), or (N, 2) with log-variances")
    found = []
    for answers in parts:
        said = answers.double().flatten(2) if answers.ndim == 3 else answers.double().unsqueeze(2)
        found.append(mixed(said[..., 0], said[..., 1:].exp().sum(-1), noise_var))
    return concatenated(found)


def _answers(
    network: nn.Module,
    x: Tensor,
    samples: int,
    networks: Networks | None,
    seed: int,
    batch_size: int,
) -> list[Tensor]:
    """Return the networks' answers to each batch, (networks, batch, …)."""
    if samples < 1:
        raise SettingError("samples", samples, "a whole number from 1 up")
    if not isinstance(x, Tensor):
        raise SettingError("x", type(x).__name__, "a tensor of the network's inputs")
    if not len(x):
        raise SettingError("x", "no input", "at least one")
    generator = Generator(device_of(network)).manual_seed(seed)
    if networks is not None:
        answering = _of(network, networks, samples, generator)
    elif gaussian_layers(network):
        answering = answering_draws(network, samples, generator)
    else:
        answering = _passes(network, next(batches(network, x, batch_size)), samples, seed)
    return [answering(batch) for batch in batches(network, x, batch_size)]


def _of(network: nn.Module, networks: Networks, samples: int, generator: Generator) -> Answers:
    """Return the answers of networks drawn from a posterior, or given."""
    if isinstance(networks, Posterior):
        states = [networks.state_dict() if gaussian_layers(network) else networks.mean]
    elif not (states := list(networks)):
        raise SettingError("networks", "none", "a posterior, or at least one state dict")
    held = network.state_dict()
    for state in states:
        _require(state, held)
    if not isinstance(networks, Posterior):
        return answering_states(network, states)
    network = copy.deepcopy(network)
    network.load_state_dict(states[0], strict=False)
    return MonteCarlo().answering(network, Predictive(held, networks), Draws(samples, generator))


def _require(state: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
    """Raise a SettingError for a tensor that the network lacks, or has in another shape."""
    for name, tensor in state.items():
        if name not in held or held[name].shape != tensor.shape:
            allowed = f"tensors of the network: {', '.join(held)}, in their shapes"
            raise SettingError("networks", f"{name} {tuple(tensor.shape)}", allowed)


def _passes(network: nn.Module, first: Tensor, samples: int, seed: int) -> Answers:
    """Return the answers of several passes; of one pass if two over the first batch agree."""
    seeds = [derive_seed(seed, "pass", number) for number in range(samples)]

    def one(batch: Tensor, start: int) -> Tensor:
        with evaluation(network), seeded(start, device_of(network)):
            answer = network(batch)
        found: Tensor = answer[0] if isinstance(answer, tuple) else answer
        return found

    if samples > 1 and torch.equal(one(first, seeds[0]), one(first, seeds[1])):
        seeds = seeds[:1]
    return lambda batch: torch.stack([one(batch, start) for start in seeds])
