"""The network that the settings name, on its device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn

from fedbary.backbones import Backbone
from fedbary.backbones._adapted import (
    Adapted,
    adapted,
    require_adapters_called,
    with_gaussians,
)
from fedbary.errors import SettingError
from fedbary.inference import prepare
from fedbary.models import build
from fedbary.parts.imports import said
from fedbary.parts.registry import is_factory
from fedbary.predictive.networks import answering_draws, device_of
from fedbary.seeds import derive_seed
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfAdapters, OfFeatures
from fedbary.tasks._values import Condition, Outcome
from fedbary.variational import gaussian_layers
from fedbary.variational.adapters import Adapters
from fedbary.variational.frozen import keep_frozen
from fedbary.variational.layers import drawing, seeded

BATCH = 2
"""Inputs that it is tried on: batch norm trains on two or more."""


def require_usable(
    name: str, network: nn.Module, shape: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    """Try a network forwards and backwards in training mode, then in evaluation mode.

    Parameters
    ----------
    name : str
        Its name in errors.
    network : nn.Module
        The network with its Gaussian layers. It is not changed, nor is any generator.
    shape : tuple of int
        Shape of an input without the batch.
    answer : tuple of int
        Shape of its answer to an input.

    Raises
    ------
    SettingError
        If two of its tensors share memory, another layer reads a Gaussian layer's weight, or it
        cannot be trained or asked.
    """
    if tied := _tied(network):
        allowed = f"a network whose tensors are each its own: {' and '.join(tied)} are one"
        raise SettingError("model", name, allowed)
    network, read = copy.deepcopy(network), []
    layers = gaussian_layers(network)
    while True:
        try:
            _try(name, network, shape, answer)
            break
        except AttributeError as error:
            found = [layer for layer in layers if layers[layer] is error.obj]
            if error.name != "weight" or not found or found[0] in read:
                raise SettingError("model", name, f"a network that works ({said(error)})") from None
            read += found
            layers[found[0]].__dict__["weight"] = layers[found[0]].weight_mean
    if read:
        last = len(layers) - 1 - max(map(list(layers).index, read))
        allowed = "a network whose weights no other module reads; another reads that of "
        allowed += f"{read[0]}; bayesian_layers up to {last} leave such layers plain"
        raise SettingError("model", name, allowed)


def _try(name: str, network: nn.Module, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Train and ask as a client and the server do; an AttributeError is let through."""
    device, mode = device_of(network), "training"
    try:
        with seeded(0, device):
            x = torch.rand(BATCH, *shape, device=device)
            generator = Generator(device).manual_seed(0)
            with torch.enable_grad(), drawing(network.train(), generator):
                answer = network(x)
                _require(name, answer, expected)
                answer.square().sum().backward()
            mode = "evaluation"
            with torch.inference_mode():
                _require(name, answering_draws(network, 2, generator)(x)[0], expected)
    except (SettingError, AttributeError):
        raise
    except Exception as error:  # noqa: BLE001 - code of others raises many kinds
        allowed = f"a network that answers {BATCH} inputs in {mode} mode ({said(error)})"
        raise SettingError("model", name, allowed) from None


def _require(name: str, answer: object, expected: tuple[int, ...]) -> None:
    if not isinstance(answer, Tensor):
        found = f"a {type(answer).__name__}"
    elif tuple(answer.shape) != (BATCH, *expected):
        found = str(tuple(answer.shape))
    else:
        return
    allowed = f"a network that answers {BATCH} inputs in training mode too with one tensor "
    raise SettingError("model", name, f"{allowed}{(BATCH, *expected)}, not {found}")


def _tied(network: nn.Module) -> tuple[str, ...]:
    """Return the names of two tensors that share memory; none where each has its own."""
    spans = []
    for name, tensor in network.state_dict().items():
        if tensor.numel():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            length = 1 + sum((size - 1) * step for size, step in steps)
            start = tensor.data_ptr()
            spans.append((start, start + length * tensor.element_size(), name))
    for (_, end, one), (start, _, other) in pairwise(sorted(spans)):
        if start < end:
            return one, other
    return ()


_TRIED: set[tuple[str, tuple[int, ...], tuple[int, ...], int]] = set()


def network(
    settings: Settings,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    answer: tuple[int, ...] = (),
) -> nn.Module:
    """Return the network for inputs of a shape, initialised from a seed.

    Its variances are initialised as the local method asks. A user's own network is tried once per
    process. Its outputs have the shape (batch, outputs), or (batch, *answer).
    """
    answer = answer or (outputs,)
    model = build(
        settings.model,
        shape,
        outputs,
        seed,
        settings.bayesian_layers,
        settings.local.init_log_var,
        settings.model_dump(),
        answer,
    )
    return as_it_trains(settings, model, shape, answer)


def as_it_trains(
    settings: Settings, model: nn.Module, shape: tuple[int, ...], answer: tuple[int, ...]
) -> nn.Module:
    """Return a fresh network on the device, as the local method asks; a user's own is tried."""
    prepare(settings.inference, model)
    model = model.to(torch_device(settings))
    tried = settings.model, shape, answer, settings.bayesian_layers
    if is_factory(settings.model) and tried not in _TRIED:
        require_usable(settings.model, model, shape, answer)
        _TRIED.add(tried)
    return model


AT_ONCE = 64
"""Images that networks answer at a time."""

_TRIED_ADAPTED: set[tuple[Backbone, Adapters, tuple[int, ...]]] = set()


def has_adapters(settings: Settings) -> bool:
    """Say whether adapters of the backbone train, in place of a model on its features."""
    own = settings.of_task(OfFeatures)
    return own.backbone != "none" and settings.of_task(OfAdapters).adapters != "none"


def on_backbone(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on the settings of features and of adapters."""
    own = settings.of_task(OfFeatures)
    if has_adapters(settings):
        fits = "none for inference=laplace, which fits the last layer alone"
        yield "adapters", settings.inference != "laplace", fits
        yield "normalise", own.normalise == "none", "none with adapters: the backbone has its own"
        yield "features", own.features == "all", "all with adapters, which change the features"
    standard = own.features == "all" or own.normalise == "channels"
    yield "features", standard, "all for normalise=none: components are of standardised features"


def adapted_network(
    settings: Settings, backbone: Backbone, shape: tuple[int, ...], outputs: int, seed: int
) -> nn.Module:
    """Return a backbone with adapters and a head, initialised from a seed.

    Parameters
    ----------
    settings
        They name the adapters, the head, and the number of Gaussian layers.
    backbone
        Stays as it is.
    shape
        Shape of an image.
    outputs
        Number of outputs.
    seed
        Seed of the head's weights; the seed of the adapters' A is derived from it.

    Raises
    ------
    SettingError
        If the adapters do not fit the backbone, or it does not take such images.
    """
    own = settings.of_task(OfAdapters)
    head = build(
        settings.model, (_width(backbone, shape),), outputs, seed, parameters=settings.model_dump()
    )
    how = Adapters(own.rank, own.targets, own.lora_alpha)
    network = adapted(backbone, head, how, derive_seed(seed, "adapters"))
    network.to(torch_device(settings))  # the body is there
    if (backbone, how, shape) not in _TRIED_ADAPTED:
        require_adapters_called(network, shape)
        _TRIED_ADAPTED.add((backbone, how, shape))
    init_log_var = settings.local.init_log_var
    network = with_gaussians(network, settings.bayesian_layers, init_log_var)
    return as_it_trains(settings, keep_frozen(network), shape, (outputs,))


def merge_shared_adapters(outcome: Outcome) -> Outcome:
    """Return an outcome with its adapters merged, if all networks that predict share these."""
    model = outcome.model
    drawn = any(name.startswith("body.") for name in outcome.predictive.posterior.log_var)
    if not isinstance(model, Adapted) or outcome.predictive.members or drawn:
        return outcome
    return replace(outcome, model=model.merged())


@lru_cache(maxsize=16)
def _width(backbone: Backbone, shape: tuple[int, ...]) -> int:
    """Return the number of features of images of a shape, asked once per process."""
    return backbone.width(shape)
