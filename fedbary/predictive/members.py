"""Predictions of several networks of one architecture, such as those that the clients sent.

`mixture` is Bayesian model averaging over the members. `product` is the geometric mean of their
predictions. `pooled` is β-PredBayes (Hasan et al. 2024), between the mixture and the product of
experts (powers 1).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor, nn

from fedbary.predictive import montecarlo
from fedbary.predictive.networks import Answers, answers_of, device_of, evaluation


def answering(
    model: nn.Module,
    members: Sequence[Mapping[str, Tensor]],
    samples: int = 0,
    generator: Generator | None = None,
) -> Answers:
    """Draw the members' networks, and return what they answer: logits (networks, batch, classes).

    Parameters
    ----------
    model
        A network of the members' architecture, on whose device the work is done. It is not changed.
    members
        State dicts, of all the model's tensors.
    samples
        Number of networks drawn from each member's posterior, member by member; 0: the network of
        its means.
    generator
        Source of the draws, on the model's device.
    """
    if samples:
        if generator is None:
            raise ValueError("drawn networks need a generator")
        each = [montecarlo.answering(_with(model, s), samples, generator) for s in members]
        return lambda batch: torch.cat([answers_to(batch) for answers_to in each])
    device = device_of(model)
    networks = [{name: t.to(device) for name, t in state.items()} for state in members]

    def by_network(batch: Tensor) -> Tensor:
        with evaluation(model):
            return answers_of(model, networks, batch)

    return by_network


def _with(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a network like the model with other tensors, copied only if they lie elsewhere."""
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    member = copy.deepcopy(model, shared)
    held = model.state_dict()
    member.load_state_dict({name: t.to(held[name]) for name, t in state.items()}, assign=True)
    return member
