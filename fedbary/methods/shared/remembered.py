"""Changes that the server remembers: the newest of each client stands for those that are away.

In the chart F of a rule that is a mean, client k's newest change is h_k = F(q_k) − F(θ_k), 0 before
its first reply. With n_k of all n examples, an aggregate is

    F(θ) ← F(θ) + Σ_k∈replies a_k (d_k − h_k) + Σ_j φ_j (n_j/n) h_j,      h_k ← d_k,

d_k being a reply's change and a_k its part (`fedbary.aggregation.arriving`). φ_j is the replies'
share of all examples: once as many examples have replied as there are, the model has moved by a
round. The sum over all clients keeps classes in that only some clients hold. A round of all clients
is the rule's own. A client's say is that of its examples at most, however often it replies.

A change that is added for long leads beyond the client's own optimum, as the client has not seen
the model since. A client that vanished would be added for ever. So φ_j falls to 0 once the replies
since client j's have had `LONGEST` times as many examples as there are.

References: Wang, Cao, Wu, Chen and Chen, Tackling the Data Heterogeneity in Asynchronous Federated
Learning with Cached Update Calibration (CA2FL), ICLR 2024. Jhunjhunwala, Sharma, Nagarkatti and
Joshi, FedVARP, UAI 2022, is the same for rounds of a part of the clients. Both remember for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from fedbary.aggregation.arriving import change_of
from fedbary.aggregation.prefixes import under
from fedbary.aggregation.rule import Rule
from fedbary.methods.shared.method import Arrival, Server, Tensors

LONGEST = 2.0
"""Passes over all examples for which the change of a client that does not reply is added."""

_NEWEST, _COUNTS = "newest/", "counts"
"""The state's keys; counts are a client's examples, and the passes since its reply."""


def with_remembered(
    rule: Rule, server: Server, arrivals: Sequence[Arrival], left_out: Collection[str]
) -> tuple[Tensors, Tensors]:
    """Return what the remembered changes add in the chart, and the changes to remember now.

    Parameters
    ----------
    rule
        A rule that is a mean.
    server, arrivals
        Those of `Method.arrive`.
    left_out
        Keys of tensors without a change, such as buffers.
    """
    held = _remembered(server.state)
    examples_of = {client: float(own[_COUNTS][0]) for client, own in held.items()}
    examples_of |= {each.client: each.weight for each in arrivals}
    every = float(server.examples) or sum(examples_of.values())
    passes = sum(each.weight for each in arrivals) / every
    weights: dict[str, float] = {}
    newest: dict[str, Mapping[str, Tensor]] = {}
    for client, own in held.items():
        examples, age = own[_COUNTS].tolist()
        weights[client] = min(passes, max(0.0, LONGEST - age)) * examples / every
        newest[client] = {**own, _COUNTS: torch.tensor([examples, age + passes])}
    for each in arrivals:
        sent = {name: each.sent[name] for name in server.model}
        change = change_of(rule, sent, each.tensors, left_out)
        counts = {_COUNTS: torch.tensor([each.weight, 0.0])}
        newest[each.client] = {n: t.to(torch.float32) for n, t in change.items()} | counts
        weights[each.client] = weights.get(each.client, 0.0) - each.part
    further: dict[str, Tensor] = {}
    for client, own in sorted(held.items()):
        for name in own.keys() - {_COUNTS}:
            term = weights[client] * own[name].double()
            further[name] = further[name] + term if name in further else term
    state = {
        f"{_NEWEST}{quote(client, safe='')}/{name}": tensor
        for client, own in newest.items()
        for name, tensor in own.items()
    }
    return further, state


def _remembered(state: Tensors) -> dict[str, dict[str, Tensor]]:
    """Return each client's newest change and its counts, by client."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in under(_NEWEST, state).items():
        client, _, name = key.partition("/")
        found.setdefault(unquote(client), {})[name] = tensor
    return found
