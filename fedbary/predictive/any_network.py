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
from fedbary.predictive import Prediction, members, mixture, montecarlo
from fedbary.predictive.choice import unstacked
from fedbary.predictive.draws import drawn
from fedbary.predictive.forecast import Forecast, joined
from fedbary.predictive.networks import Answers, batches, device_of, evaluation
from fedbary.seeds import derive_seed
from fedbary.variational import gaussian_layers
from fedbary.variational.noise import seeded

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
    return mixture(parts)


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
        means, noise_vars = said[..., 0], said[..., 1:].exp().sum(-1)
        spread = means.var(0, correction=0)
        found.append(Forecast(means.mean(0), spread, noise_vars.mean(0) + noise_var))
    return joined(found)


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
    if networks is not None:
        answering = _of(network, networks, samples, seed)
    elif gaussian_layers(network):
        answering = montecarlo.answering(network, samples, _generator(network, seed))
    else:
        answering = _passes(network, next(batches(network, x, batch_size)), samples, seed)
    return [answering(batch) for batch in batches(network, x, batch_size)]


def _of(network: nn.Module, networks: Networks, samples: int, seed: int) -> Answers:
    """Return the answers of networks drawn from a posterior, or given."""
    named = [networks.state_dict()] if isinstance(networks, Posterior) else list(networks)
    if not named:
        raise SettingError("networks", "none", "a posterior, or at least one state dict")
    held = network.state_dict()
    if isinstance(networks, Posterior) and gaussian_layers(network):
        network = copy.deepcopy(network)
        _require(named[0], held)
        network.load_state_dict(named[0], strict=False)
        return montecarlo.answering(network, samples, _generator(network, seed))
    if isinstance(networks, Posterior):
        on_cpu = Generator().manual_seed(seed)
        named = unstacked(drawn(networks, samples if networks.log_var else 1, on_cpu))
    for state in named:
        _require(state, held)
    return members.answering(network, named)


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


def _generator(network: nn.Module, seed: int) -> Generator:
    return Generator(device_of(network)).manual_seed(seed)
