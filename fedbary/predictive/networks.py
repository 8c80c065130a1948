"""Networks drawn from posteriors, and what several networks answer to a batch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from fedbary.data.batches import scale_pixels
from fedbary.gaussian import Posterior, variance_power
from fedbary.variational import gaussian_layers
from fedbary.variational.layers import normal_like, sample_weights

Network = Mapping[str, Tensor]
"""Tensors by name that replace a model's own."""

Answers = Callable[[Tensor], Tensor]
"""Takes a batch, and returns the networks' answers, (networks, batch, outputs)."""


@runtime_checkable
class Headed(Protocol):
    """A network that runs its plain layers once for several drawn networks."""

    def can_split(self) -> bool:
        """Return whether plain layers are followed by variational ones alone, at least one."""

    def trunk(self, x: Tensor) -> Tensor:
        """Return the features that the plain layers make of a batch."""

    def head_logits(self, features: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Return logits (networks, batch, classes) of features under weights drawn for each layer.

        `weights` holds for each variational layer, in order, (networks, *weight shape).
        """


@runtime_checkable
class Parted(Protocol):
    """A network that names the part that all drawn networks share."""

    def trunk_and_head(self) -> tuple[Callable[[Tensor], Tensor] | None, nn.Module]:
        """Return the leading part of point weights (None for none), and the rest."""


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode within the block; then restore each part's mode."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def device_of(model: nn.Module) -> torch.device:
    """Return the device that a model's tensors lie on; the CPU for one without tensors."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def batches(model: nn.Module, x: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Yield the inputs in parts, as the model takes them, on its device."""
    device = device_of(model)
    for batch in x.split(batch_size):
        yield scale_pixels(batch.to(device))


def answers_of(model: nn.Module, networks: Sequence[Network], batch: Tensor) -> Tensor:
    """Return what the networks answer to a batch, (networks, batch, classes).

    If they differ only in the last layer, the layers before it run once for all.
    """
    names = {name.rpartition(".")[0] for network in networks for name in network}
    if len(networks) == 1 or len(names) != 1:
        return torch.stack([functional_call(model, dict(n), (batch,)) for n in networks])
    (name,), calls = names, []

    def seen(_: nn.Module, given: Any, named: Any, answer: Tensor) -> None:
        calls.append((given, named, answer))

    with model.get_submodule(name).register_forward_hook(seen, with_kwargs=True):
        first = functional_call(model, dict(networks[0]), (batch,))
    if [answer is first for _, _, answer in calls] == [True]:
        given, named, _ = calls[0]
        model = model.get_submodule(name)
        networks = [{k.removeprefix(f"{name}."): v for k, v in n.items()} for n in networks]
    else:
        given, named = (batch,), {}
    others = [functional_call(model, dict(n), given, named) for n in networks[1:]]
    return torch.stack([first, *others])


# Networks of any module, by the names of its tensors


def unstacked(networks: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return each of K networks, given as (K, *shape) by name."""
    count = len(next(iter(networks.values())))
    return [{name: tensor[k] for name, tensor in networks.items()} for k in range(count)]


@torch.no_grad()
def drawn(posterior: Posterior, samples: int, generator: Generator | None) -> dict[str, Tensor]:
    """Draw networks from a posterior, (samples, *shape) by name; point tensors are repeated.

    They lie on the generator's device, or without one on the posterior's.
    """
    networks, device = {}, generator.device if generator else None
    for name, mean in posterior.mean.items():
        stacked = mean.to(device=device).expand(samples, *mean.shape)
        if name in posterior.log_var:
            std = variance_power(posterior.log_var[name].to(device=device), 0.5)
            noise = normal_like(torch.empty_like(stacked), generator)
            stacked = torch.addcmul(stacked, std, noise)
        networks[name] = stacked
    return networks


def answering_states(model: nn.Module, states: Sequence[Network]) -> Answers:
    """Return what networks answer to a batch, logits (networks, batch, classes).

    Parameters
    ----------
    model
        A network of their architecture, on whose device the work is done. It is not changed.
    states
        Their state dicts, of all the model's tensors.
    """
    device = device_of(model)
    networks = [{name: t.to(device) for name, t in state.items()} for state in states]

    def answer(batch: Tensor) -> Tensor:
        with evaluation(model):
            return answers_of(model, networks, batch)

    return answer


# Networks of Gaussian layers


def answering_draws(model: nn.Module, samples: int, generator: Generator) -> Answers:
    """Draw networks from a model's Gaussian layers, and return their answers to a batch.

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
    plain_biases = not any(layer.has_gaussian_bias for layer in layers)
    if samples and isinstance(model, Headed) and model.can_split() and plain_biases:
        weights = [sample_weights(layer, samples, generator) for layer in layers]

        def answer_by_head(batch: Tensor) -> Tensor:
            with evaluation(model):
                return model.head_logits(model.trunk(batch), weights)

        return answer_by_head
    trunk, head = model.trunk_and_head() if isinstance(model, Parted) else _split(model)
    networks = drawn_layers(head, samples, generator)

    def answer(batch: Tensor) -> Tensor:
        with evaluation(model):
            return answers_of(head, networks, batch if trunk is None else trunk(batch))

    return answer


def drawn_layers(model: nn.Module, samples: int, generator: Generator) -> list[Network]:
    """Draw networks: for each, the tensors that differ from the network of the means.

    There is one network if the model has no variational layers, or if `samples` is 0.
    """
    stacked = {}
    for name, layer in gaussian_layers(model).items():
        stacked[f"{name}.weight_mean"] = sample_weights(layer, samples, generator)
        if samples and layer.has_gaussian_bias:
            draws = (layer.drawn_bias(generator) for _ in range(samples))
            stacked[f"{name}.bias_mean"] = torch.stack([b for b in draws if b is not None])
    return [*unstacked(stacked)] if stacked and samples else [{}]


def with_state(model: nn.Module, state: Network) -> nn.Module:
    """Return a network like the model with other tensors, copied only if they lie elsewhere."""
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    member = copy.deepcopy(model, shared)
    held = model.state_dict()
    member.load_state_dict({name: t.to(held[name]) for name, t in state.items()}, assign=True)
    return member


def _split(model: nn.Module) -> tuple[nn.Module | None, nn.Module]:
    """Return the part of an `nn.Sequential` before its first Gaussian layer, and the rest."""
    if type(model) is nn.Sequential:
        for index, part in enumerate(model):
            if gaussian_layers(part):
                return model[:index], model[index:]
    return None, model
