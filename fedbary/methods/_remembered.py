"""Changes that the server remembers: the newest of each client stands for it while it is away.

Let x be a model's means, log-variances and point weights. Client k was sent θ_k and replied q_k, so
its newest change is h_k = x(q_k) − x(θ_k). It is 0 before its first reply. If all clients replied
to the model θ of now with these changes, a round would move θ by

    Δ(h) = x(R(θ + h_1, …, θ + h_K)) − x(θ),

R being the rule with its steps before it. Some replies turn h into h'. The server moves by

    x(θ) ← x(θ) + a (Δ(h') − Δ(h)) + φ Δ(h°).

φ is the replies' share of all examples, and aφ is the sum of their parts
(`fedbary.aggregation.arriving`). Under a rule that compares clients Δ may jump when one more of
them is known, so there a is at most 1. Once as many examples have replied as there are, θ has moved
by a round. So classes that only some clients hold stay in. A round of all clients is the rule's
own. The result is Gaussian, since log-variances move.

Every round is of all clients. So robust rules, clipping and mixing compare all of them, and a
client that replies often does not count more often. Under a mean in a chart its say is that of its
examples.

An old change leads beyond the client's own optimum, as the client has not seen the model since. A
client that vanished would be added for ever. So h° is h without the changes after which the replies
have had `LONGEST` times as many examples as there are.

A buffer of h' is the client's newest value itself: running statistics do not add up.

References: Wang, Cao, Wu, Chen and Chen, Tackling the Data Heterogeneity in Asynchronous Federated
Learning with Cached Update Calibration (CA2FL), ICLR 2024. Jhunjhunwala, Sharma, Nagarkatti and
Joshi, FedVARP, UAI 2022, is the same for rounds of a part of the clients. Both are for point
weights, average, and remember for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from fedbary.aggregation.sums import LARGEST_LOG_VAR, select_prefix
from fedbary.gaussian import gaussian_pairs
from fedbary.methods._method import Arrival, Reply, Server, Tensors, by_client, is_buffer, of_client

LONGEST = 2.0
"""Passes over all examples for which the change of a client that does not reply is repeated."""

Round = Callable[[Sequence[Reply]], Tensors]
"""Returns the aggregate that a rule makes of a round's replies."""

_NEWEST, _COUNTS = "remembered/", "remembered counts/"
"""Prefixes of the state's keys; counts are a client's examples, and the passes since its reply."""


@dataclass(frozen=True, eq=False)
class Newest:
    """A client's newest change.

    Parameters
    ----------
    change : Tensors
        h_k under the model's keys; of a buffer its value.
    examples : float
        The client's number of examples.
    age : float
        Number of passes over all examples that other replies have made since.
    """

    change: Tensors
    examples: float
    age: float = 0.0


def step(
    server: Server, arrivals: Sequence[Arrival], of_round: Round, compares: bool
) -> tuple[Tensors, Tensors]:
    """Return the model after some replies, and the state with the changes to remember.

    Parameters
    ----------
    server, arrivals
        Those of `Method.arrive`.
    of_round
        The rule's aggregate of a round.
    compares
        Whether it compares the replies of a round, as robust rules do.
    """
    before = _read(server.state)
    lasting = {client: own for client, own in before.items() if own.age < LONGEST}
    counts = {client: own.examples for client, own in before.items()}
    counts |= {each.client: each.weight for each in arrivals}
    sizes = math.fsum(counts.values())
    absent = max(0, server.clients - len(counts))
    still = max(0.0, server.examples - sizes) / absent if absent else 0.0
    if absent and not server.examples:
        still = sizes / len(counts)
    every = sizes + absent * still
    share = math.fsum(each.weight for each in arrivals) / every
    ahead = math.fsum(each.part for each in arrivals) / share
    ahead = min(1.0, ahead) if compares else ahead
    after = {client: replace(own, age=own.age + share) for client, own in before.items()}
    after |= {each.client: Newest(_change(server.model, each), each.weight) for each in arrivals}
    known = {client: Newest({}, examples) for client, examples in counts.items()}

    def moved_to(newest: Mapping[str, Newest]) -> Tensors:
        own = {**known, **newest}
        replies = [_reply(server.model, client, own[client]) for client in sorted(own)]
        others = [Reply("", still, server.model)] * absent
        return of_round([*replies, *others])

    old, new = moved_to(before), moved_to(after)
    repeated = moved_to(lasting) if len(lasting) < len(before) else old
    model: dict[str, Tensor] = {}
    for name, tensor in server.model.items():
        if is_buffer(name, tensor):
            model[name] = new[name]
        else:
            here, then, now = (each[name].double() for each in (server.model, old, new))
            model[name] = here + ahead * (now - then) + share * (repeated[name].double() - here)
    return _bounded(model, server.model), _written(after)


def _change(model: Tensors, arrival: Arrival) -> Tensors:
    """Return the reply less what was sent, in float32 or wider; of a buffer its value."""
    found: dict[str, Tensor] = {}
    for name, tensor in model.items():
        reply = arrival.tensors[name]
        if not is_buffer(name, tensor):
            kept = torch.promote_types(tensor.dtype, torch.float32)
            reply = (reply.double() - arrival.sent[name].double()).to(kept)
        found[name] = reply
    return found


def _reply(model: Tensors, client: str, newest: Newest) -> Reply:
    """Return the reply of a client that moves the model of now by its newest change."""
    tensors = dict(model)
    for name, change in newest.change.items():
        is_value = is_buffer(name, model[name])
        tensors[name] = change if is_value else model[name].double() + change
    return Reply(client, newest.examples, _bounded(tensors, model))


def _bounded(tensors: Tensors, like: Tensors) -> Tensors:
    """Return tensors in the dtypes of others, with log-variances within ±39.6."""
    log_vars = {*gaussian_pairs(like.keys()).values()}
    most = LARGEST_LOG_VAR
    return {
        name: (tensor.clamp(-most, most) if name in log_vars else tensor).to(like[name].dtype)
        for name, tensor in tensors.items()
    }


def _read(state: Tensors) -> dict[str, Newest]:
    """Return each client's newest change, by client."""
    counts = {unquote(k): numbers.tolist() for k, numbers in select_prefix(_COUNTS, state).items()}
    return {k: Newest(own, *counts[k]) for k, own in by_client(_NEWEST, state).items()}


def _written(newest: Mapping[str, Newest]) -> dict[str, Tensor]:
    """Return the state that holds the changes."""
    state: dict[str, Tensor] = {}
    for client, own in newest.items():
        state |= of_client(_NEWEST, client, own.change)
        state[_COUNTS + quote(client, safe="")] = torch.tensor(
            [own.examples, own.age], dtype=torch.float64
        )
    return state
