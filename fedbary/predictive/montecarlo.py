"""The posterior predictive by Monte Carlo: p(y | x) ≈ mean over draws θ_s of softmax f(x; θ_s)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn

from fedbary.predictive.combine import Prediction, mixture
from fedbary.predictive.networks import (
    Answers,
    Headed,
    Network,
    Parted,
    answers_of,
    batches,
    evaluation,
)
from fedbary.variational.conversion import gaussian_layers
from fedbary.variational.layers import sample_weights


def predict(
    model: nn.Module, x: Tensor, samples: int, generator: Generator, batch_size: int = 500
) -> Prediction:
    """Predict by the mean softmax of `samples` networks; the parameters are those of `answers`."""
    return mixture(answers(model, x, samples, generator, batch_size))


@torch.inference_mode()
def answers(
    model: nn.Module, x: Tensor, samples: int, generator: Generator, batch_size: int = 500
) -> Iterator[Tensor]:
    """Yield for each batch the logits (samples, batch, classes) of drawn networks, see `answering`.

    Parameters
    ----------
    model
        The network; its device is where the work is done.
    x
        Images (N, C, H, W), uint8 in 0…255 or float.
    samples
        Number of networks drawn, at least 1.
    generator
        Source of the draws, on the model's device.
    batch_size
        Images at a time.
    """
    yield from map(answering(model, samples, generator), batches(model, x, batch_size))


def answering(model: nn.Module, samples: int, generator: Generator) -> Answers:
    """Draw networks, and return their answers to a batch.

    They are drawn once, so that the answer for an image does not depend on the images beside it.
    They run in evaluation mode; the model is left as it was. A model without variational layers is
    one network, which runs once. With 0 samples the network of the means runs. The leading plain
    layers run once for all networks, if the model is an `nn.Sequential`, has adapters, or has a
    `trunk` and a head, as the CNN does. The variational layers of a head compute all networks in
    one pass.

    Parameters
    ----------
    model
        The network; its device is where the work is done.
    samples
        Number of networks drawn; 0 for the network of the means.
    generator
        Source of the draws, on the model's device.
    """
    layers = gaussian_layers(model).values()
    if samples and isinstance(model, Headed) and model.can_split():
        weights = [sample_weights(layer, samples, generator) for layer in layers]

        def by_head(batch: Tensor) -> Tensor:
            with evaluation(model):
                return model.head_logits(model.trunk(batch), weights)

        return by_head
    trunk, head = model.trunk_and_head() if isinstance(model, Parted) else _split(model)
    networks = drawn(head, samples, generator)

    def by_network(batch: Tensor) -> Tensor:
        with evaluation(model):
            return answers_of(head, networks, batch if trunk is None else trunk(batch))

    return by_network


def drawn(model: nn.Module, samples: int, generator: Generator) -> list[Network]:
    """Draw networks: for each, the tensors that differ from the network of the means.

    There is one network if the model has no variational layers, or if `samples` is 0.
    """
    weights = {
        name: sample_weights(layer, samples, generator)
        for name, layer in gaussian_layers(model).items()
    }
    if not weights or not samples:
        return [{}]
    return [
        {f"{name}.weight_mean": stacked[sample] for name, stacked in weights.items()}
        for sample in range(samples)
    ]


def _split(model: nn.Module) -> tuple[nn.Module | None, nn.Module]:
    """Return the part of an `nn.Sequential` before its first Gaussian layer, and the rest."""
    if type(model) is nn.Sequential:
        for index, part in enumerate(model):
            if gaussian_layers(part):
                return model[:index], model[index:]
    return None, model
