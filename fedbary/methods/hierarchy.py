"""Hierarchy: a barycentre for each group of clients, and one of the groups.

The clients of a group G send posteriors q_k, with weights n_k by size. The server takes two levels
of barycentres under one rule, a mean in a chart F:

    group:   g_G = F⁻¹(Σ_{k in G} n_k F(q_k) / n_G),      n_G = Σ_{k in G} n_k
    global:  q   = F⁻¹(Σ_G W_G F(g_G)),                   W_G = n_G / n,  or 1 / number of groups

A group's model is then F⁻¹((1 − λ) F(g_G) + λ F(q)), with λ the `global_weight`. Its clients begin
the next round from it, and predict by it. In the first round all begin from the global model. A
group of which nobody replies keeps its model, and does not count in that round's global model. With
prior=global a client's prior is its group's posterior. A run with start_from makes groups anew.

With W_G = n_G / n two levels are one level: the global model is the barycentre of all clients. The
server computes it so, in one pass over the replies. Equal weights are for groups that stand for
populations of like importance, such as countries, however many clients take part.

Groups are given, or found. Found ones are k-means clusters of the first round's posteriors, by the
divergence that the rule minimises (`fedbary.methods._clusters`), else by Wasserstein-2. A
client that comes later joins the group whose model is nearest to its first reply.

It assumes that clients come in kinds, and that one model describes a kind.

Messages: the group's model down, as in barycentre; the global one beside it for scores. Clients
keep nothing.

Cost: a round costs what barycentre's does. The server goes twice over the replies, and keeps a
model for each group.

Use it where clients differ by kind: scanners, countries, meanings of a label.

Trap: a hostile client is bounded in the global model as under barycentre, and by its group's
median in its group's. A group of one is what its client says. Found groups may give an outlier a
group of its own, which leaves one less for the others.

References: Jamoussi, Serra, Stavrou and Kountouris, Information-Geometric Barycenters for Bayesian
Federated Learning (BA-BFL), name hierarchies in their outlook; groups that train apart are those of
Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning, NeurIPS
2020 (IFCA), which finds them by losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal
from urllib.parse import quote, unquote

import torch

from fedbary.aggregation import DIVERGENCES, RULES, AnyRule, Rule, aggregate, aggregate_tensors
from fedbary.aggregation.sums import LARGEST_LOG_VAR, normalised, select_prefix
from fedbary.aggregation.tensors import new_empty
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods._conditions import Unfit
from fedbary.methods._method import Local, Method, Reply, Server, Tensors, of_client
from fedbary.methods.barycentre import Barycentre
from fedbary.parts.parameters import Count, NameList, ShareOrZero
from fedbary.predictive import Predictive
from fedbary.settings.config import Settings
from fedbary.texts import names_in

OTHERS = "others"
"""The group of clients for whom none is given."""

MOST = 1000
"""Largest number of groups to find."""

OWN = "group/"
"""The prefix of the names of a group's model in a message that asks for scores."""

_MODEL, _OF = "groups/", "of/"


def of_groups(method: Hierarchy, run: Settings) -> Unfit:
    """Refuse a list of groups that is not one for each client."""
    listed = names_in(str(method.groups))
    if len(listed) > 1 and ":" not in listed[0] and len(listed) != run.clients:
        yield "groups", f"a group for each of the {run.clients} clients, or client:group"


@dataclass(frozen=True)
class Hierarchy(Barycentre):
    """Barycentres of groups of clients, and one of the groups (BA-BFL's outlook).

    Parameters
    ----------
    groups : str or int
        Number of groups to find, or the given ones: the group of each simulated client, `a,a,b`,
        or of clients by name, `oslo:north,rome:south`. Clients without one are the group `others`.
    group_weights : str
        Weight of a group in the global model. examples: its number of examples; equal: all count
        alike.
    global_weight : float
        λ, the weight of the global model in a group's. 0: groups train apart; 1: all groups have
        the global model.
    """

    groups: NameList | Count = "2"
    group_weights: Literal["examples", "equal"] = "examples"
    global_weight: ShareOrZero = 0.0

    conditions = (of_groups,)

    def __post_init__(self) -> None:
        """Refuse rules without levels, and what compares replies to one model."""
        super().__post_init__()
        if not has_levels(self.chosen):
            names = ", ".join(name for name, rule in RULES.items() if has_levels(rule))
            raise SettingError("rule", self.chosen.name, f"for method={self.name}: {names}")
        for name in ("clipping", "mixing", "server_momentum", "remember"):
            if value := getattr(self, name):
                allowed = f"no value for method={self.name}: its clients begin from several models"
                raise SettingError(name, value, allowed)
        _ = self._given

    @cached_property
    def _given(self) -> Mapping[str, str]:
        """The given groups by client; empty where they are found."""
        words = names_in(str(self.groups))
        alone = len(words) == 1 and ":" not in words[0]
        if alone and words[0].isdecimal() and 1 <= int(words[0]) <= MOST:
            return {}
        named = [word.rpartition(":") for word in words]
        by_name = any(colon for _, colon, _ in named)
        found = {
            client.strip() if by_name else f"partition {k}": group.strip()
            for k, (client, _, group) in enumerate(named)
        }
        if alone or not all([*found, *found.values()]) or len(found) < len(words):
            allowed = f"1 to {MOST}, a group for each client (a,a,b), or client:group once a client"
            raise SettingError("groups", self.groups, allowed)
        return found

    @property
    def _labels(self) -> list[str]:
        """The names of the groups; the last of given ones is that of other clients."""
        if not self._given:
            return [str(j + 1) for j in range(int(self.groups))]
        return [*sorted({*self._given.values()} - {OTHERS}), OTHERS]

    def check(self, clients: int, epochs: int) -> None:
        """Refuse more groups to find than there are replies."""
        if not self._given and int(self.groups) > clients:
            allowed = f"at most {clients}, the clients that train in a round"
            raise SettingError("groups", self.groups, allowed)

    arrive = Method.arrive  # a group's barycentre is of a round

    def held(self, clients: int) -> int:
        """Return the number of the groups' models and the global one."""
        return len(self._labels) + 1

    def groups_of(self, state: Tensors) -> dict[str, str]:
        """Return each client's group, from the state after a round."""
        numbers = select_prefix(_OF, state)
        return {unquote(site): self._labels[int(number)] for site, number in numbers.items()}

    def model_of(self, state: Tensors, group: str) -> Tensors:
        """Return a group's model from the state after a round; none before its first reply."""
        return select_prefix(f"{_MODEL}{quote(group, safe='')}/", state)

    def send(self, server: Server, client: str) -> Tensors:
        """Return the model of the client's group; the global one before there is one."""
        return self._own(server, client) or server.model

    def show(self, server: Server, client: str) -> Tensors:
        """Return the global model, and the group's."""
        own = {OWN + name: tensor for name, tensor in self._own(server, client).items()}
        return {**server.model, **own}

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Return the model of the client's group."""
        own = select_prefix(OWN, received)
        return Predictive(own) if own else None

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Take the barycentre of each group, and that of the groups."""
        barycentre = super().aggregate
        group_of = self._groups(server, replies)
        present = sorted({group_of[reply.client] for reply in replies})
        own = {group: [r for r in replies if group_of[r.client] == group] for group in present}
        weights = dict.fromkeys(present, 1.0)
        if self.group_weights == "equal":
            weights = {group: sum(r.weight for r in of) for group, of in own.items()}
        counted = [replace(r, weight=r.weight / weights[group_of[r.client]]) for r in replies]
        found, _ = barycentre(server, counted)
        state = {**server.state}
        for group, of in own.items():
            model, _ = barycentre(replace(server, empty=new_empty), of)
            state |= of_client(_MODEL, group, self._towards(found, model))
        for client, group in group_of.items():
            state[_OF + quote(client, safe="")] = torch.tensor(self._labels.index(group))
        return found, state

    def _own(self, server: Server, client: str) -> Tensors:
        """Return the model of a client's group; none before there is one."""
        group = self._given.get(client, OTHERS) if self._given else None
        group = group or self.groups_of(server.state).get(client)
        return self.model_of(server.state, group) if group else {}

    def _groups(self, server: Server, replies: Sequence[Reply]) -> dict[str, str]:
        """Return the group of each client that has replied so far."""
        known = self.groups_of(server.state)
        new = sorted((r for r in replies if r.client not in known), key=lambda r: r.client)
        names = [reply.client for reply in new]
        if not self._given:
            return known | dict(zip(names, self._found(server, new), strict=True))
        if not known and not self._given.keys() & set(names):
            raise SettingError("groups", self.groups, f"groups of these clients: {names}")
        if strangers := [name for name in names if name not in self._given]:
            server.warn(f"no group is given for {', '.join(strangers)}: they are {OTHERS!r}")
        return known | {name: self._given.get(name, OTHERS) for name in names}

    def _found(self, server: Server, new: Sequence[Reply]) -> list[str]:
        """Return a group for each new client: clusters of the first, else the nearest model."""
        posteriors = [Posterior.from_state_dict(reply.tensors) for reply in new]
        rule = self.chosen.name
        if rule not in DIVERGENCES or not all(q.log_var for q in posteriors):
            rule = "WB"
        models = {group: self.model_of(server.state, group) for group in self._labels}
        held = {group: Posterior.from_state_dict(own) for group, own in models.items() if own}
        if held:
            near = DIVERGENCES[rule]
            return [min(held, key=lambda group: near(held[group], q)) for q in posteriors]
        count = min(len(self._labels), len(new))
        members = clustered(rule, posteriors, [r.weight for r in new], count).members
        order = list(dict.fromkeys(members))  # the first client is of the first group
        return [self._labels[order.index(member)] for member in members]

    def _towards(self, model: Tensors, own: Tensors) -> Tensors:
        """Return a group's model, λ of the way to the global one in the rule's chart."""
        if self.global_weight == 0:
            return own
        return aggregate_tensors(
            self.chosen,
            [own, model],
            [1 - self.global_weight, self.global_weight],
            least_dtype=torch.float32,
            largest_log_var=LARGEST_LOG_VAR,
        )


@cache
def has_levels(rule: AnyRule) -> bool:
    """Return whether two levels of barycentres are one: of two Gaussians, then with a third.

    It holds for a mean in a chart of two coordinates.
    """
    if not (isinstance(rule, Rule) and rule.is_mean):
        return False
    numbers = torch.tensor([[-1.0, 0.5, 2.0], [0.3, -2.0, 1.0]], dtype=torch.float64)
    a, b, c = (Posterior({"w": mean}, {"w": log_var}) for mean, log_var in numbers.T[..., None])
    two = aggregate(rule, [aggregate(rule, [a, b], [1, 2]), c], [3, 1])
    one = aggregate(rule, [a, b, c], [1, 2, 1])
    return torch.allclose(two.mean["w"], one.mean["w"]) and torch.allclose(
        two.log_var["w"], one.log_var["w"]
    )


@dataclass(frozen=True, eq=False)
class Clusters:
    """Result of `clustered`.

    Attributes
    ----------
    members : tuple of int
        Cluster of each posterior.
    centres : tuple of Posterior
        The clusters' barycentres.
    costs : tuple of float
        Σ w_k min_j D(c_j, q_k) for the first centres and after each step; it never rises.
    """

    members: tuple[int, ...]
    centres: tuple[Posterior, ...]
    costs: tuple[float, ...]


def clustered(
    rule: str,
    posteriors: Sequence[Posterior],
    weights: Sequence[float],
    clusters: int,
    steps: int = 100,
) -> Clusters:
    """Cluster posteriors by k-means with barycentres for centres.

    Lloyd's steps minimise Σ_k w_k min_j D(c_j, q_k). Each posterior joins the centre of least
    divergence; each centre moves to the barycentre of its posteriors. D is the divergence that the
    rule minimises: KL(c ‖ q) for RKLB, KL(q ‖ c) for FKLB, W2² for WB (k-means in (m, √v)). Neither
    step increases the sum. A single cluster's centre is the barycentre.

    The first centres are posteriors that lie far apart: the one nearest to the barycentre of all,
    then repeatedly the one farthest from the centres so far. The steps end when no posterior moves.

    Parameters
    ----------
    rule
        A rule that minimises a divergence.
    posteriors
        The clients', of one layout.
    weights
        One per posterior, none negative, not all 0.
    clusters
        Number of clusters, from 1 to the number of posteriors.
    steps
        Largest number of steps.

    Raises
    ------
    SettingError
        If an argument is out of its range.
    """
    if rule not in DIVERGENCES:
        raise SettingError("rule", rule, ", ".join(DIVERGENCES))
    if not 1 <= clusters <= len(posteriors):
        raise SettingError("clusters", clusters, f"from 1 to {len(posteriors)}, the posteriors")
    divergence, shares = DIVERGENCES[rule], normalised(weights)
    centres = [aggregate(rule, posteriors, shares)]
    if clusters > 1:
        first = [divergence(centres[0], q) for q in posteriors]
        centres = [posteriors[first.index(min(first))]]
    nearest = [divergence(centres[0], q) for q in posteriors]
    while len(centres) < clusters:
        centres.append(posteriors[nearest.index(max(nearest))])
        nearest = [
            min(n, divergence(centres[-1], q)) for n, q in zip(nearest, posteriors, strict=True)
        ]
    members: list[int] = []
    costs: list[float] = []
    for _ in range(steps + 1):
        distances = [[divergence(centre, q) for centre in centres] for q in posteriors]
        costs.append(sum(w * min(row) for w, row in zip(shares, distances, strict=True)))
        nearest_now = [row.index(min(row)) for row in distances]
        if nearest_now == members:
            break
        members = nearest_now
        for j in range(clusters):
            held = [k for k, member in enumerate(members) if member == j and shares[k] > 0]
            if held:
                own = [posteriors[k] for k in held]
                centres[j] = aggregate(rule, own, [shares[k] for k in held])
    return Clusters(tuple(members), tuple(centres), tuple(costs))
