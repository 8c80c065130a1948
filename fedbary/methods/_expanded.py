"""Sites of point weights: a client's likelihood, expanded at the mode of its tilted posterior.

M is the global mean, and N(0, 1/λ) the prior. Client k's site has the slope R_k at M and the
precision P_k, which a structure holds (`fedbary.aggregation.covariance`). A round is

    client:  W_k = argmin NLL_k/κ + ⟨λ M + Σ_j≠k R_j, W − M⟩ + ½ ‖W − M‖² under λ + Σ_j≠k P_j,
             P = ∇² NLL_k(W_k)/κ,      R = ∇ NLL_k(W_k)/κ + P (M − W_k),
    server:  P_k ← P_k + γ (P − P_k),      R_k ← R_k + γ (R − R_k),
             M' = M − (λ + Σ P_k)⁻¹ (λ M + Σ R_k),      R_k ← R_k + P_k (M' − M).

That is PVI's recursion in natural parameters, the shift being P_k M − R_k. Slopes lose no digits
where the shift's two terms nearly cancel, and a site's mean need not exist. At a fixed point the
slopes of all likelihoods and of the prior sum to 0: M is the mode of all data, whatever the
structure.

γ is 1 in the first round: no two sites tell of the same data. Full sites hold the curvature, so
rounds converge as Newton's method does, and their γ stays 1. The γ of others follows from the
rounds themselves. Without it shared sites diverge, too, where labels are skewed: they hold a bound
on the curvature, but every client expands at a mode of its own. With r the way from M to the mode
of the undamped sites and P their precision,

    γ ← −γ ⟨r', P (r − r')⟩ / ⟨r − r', P (r − r')⟩,      within 0.1 and 1,

r' being that of the round before. It is a secant's step, and needs nothing of the clients. It is
the structure's own constant if other clients reply than in the round before.

Reference: Irons and Tuck, A version of the Aitken accelerator for computer iteration, 1969.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from urllib.parse import quote
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedbary.aggregation.covariance import STRUCTURES, Quadratic, Structure, unpacked, with_outputs
from fedbary.errors import SettingError
from fedbary.inference._head import Head
from fedbary.methods._curvature import conjugate_gradients, last_layer, matrix, tensors_of
from fedbary.methods._method import (
    Arrival,
    Fitted,
    Inherited,
    Local,
    Reply,
    Server,
    Tensors,
    by_client,
    of_client,
    older,
    whose,
)
from fedbary.methods._sites import require_positive_kl_weight

SLOPE, _SITES = "slope", "site/"
MOST_NUMBERS = 2**25
"""The most numbers of a site: 128 MB in float32."""

OWN = "own/"
MOST_OWN = 2**17
"""The most numbers of a site that is kept of the first round, too: tables have no more."""

_TOTALS: WeakKeyDictionary[Server, Mapping[str, Tensor]] = WeakKeyDictionary()
"""The sum of the sites, as long as the messages of a round are made."""

RESIDUAL, _STEP, _CLIENTS = "step/residual", "step/length", "step/clients"
"""The keys of r and γ of the last round, and of a number that stands for who replied in it."""

LEAST_STEP = 0.1
"""The least γ."""


@dataclass(frozen=True)
class Product:
    """The prior times some sites.

    Attributes
    ----------
    mode : Tensor
        Its mode, (outputs, inputs).
    applied : callable
        From W to its precision times W.
    """

    mode: Tensor
    applied: Callable[[Tensor], Tensor]


def rounding(structure: Structure, received: Tensors) -> float:
    """Return the most by which messages of few digits lower a full cavity's precisions.

    A softmax has directions that only the prior holds, and rounding may turn them negative: then
    the client has no mode. So much is added about M, the mode of all, which stays where it is.
    """
    if not structure.undamped:
        return 0.0
    held = received["cavity/precision"]
    return math.sqrt(2) * torch.finfo(held.dtype).eps * float(held.double().norm())


@dataclass(frozen=True)
class Claim:
    """A full site's claims on its rows.

    Attributes
    ----------
    bent, slope : float
        The largest entries of the curvature P, and of the likelihood's slope at W, the client's
        mode.
    spread : float
        ⟨W, P W⟩.
    away : callable
        Takes V (outputs, inputs) and returns ½ ⟨V − C, Λ (V − C)⟩, with the mode C and the
        precision Λ of the prior times the other sites.
    """

    bent: float
    slope: float
    spread: float
    away: Callable[[Tensor], float]


@dataclass(frozen=True)
class Expanded:
    """The sites of a last layer under a structure.

    Parameters
    ----------
    covariance : str
        The structure's name.
    prior_precision : float
        λ.
    damping : float
        γ after the first round; 0: by Aitken's rule.
    """

    covariance: str
    prior_precision: float
    damping: float

    def structure(self, model: Tensors) -> Structure:
        """Return the structure of a model's last layer; a SettingError if a site is too large."""
        like = matrix(model, last_layer(model))
        structure = STRUCTURES[self.covariance](*like.shape)
        if (numbers := sum(structure.sizes().values())) > MOST_NUMBERS:
            said = f"{self.covariance} of {like.numel():,} weights, {numbers:,} numbers a client"
            allowed = (
                f"a structure of at most {MOST_NUMBERS:,} numbers: diagonal, kronecker, shared"
            )
            raise SettingError("covariance", said, allowed)
        return structure

    def inherit(self, model: Tensors, inherited: Inherited) -> tuple[Tensors, Tensors]:
        """Return the model, new classes at 0, and the earlier sites; a SettingError without any."""
        structure, places = self.structure(model), inherited.places
        if places and not structure.grows:
            said = f"{self.covariance} with new classes: its bound on the old ones would be another"
            allowed = ", ".join(name for name, each in STRUCTURES.items() if each.grows)
            raise SettingError("covariance", said, allowed)
        old = replace(structure, outputs=sum(p >= 0 for p in places) or structure.outputs)
        sizes = {SLOPE: old.outputs * old.inputs, **old.sizes()}
        sites = dict(self.sites(inherited.state, old))
        if not sites or any(len(site[n]) != sizes[n] for site in sites.values() for n in sizes):
            allowed = f"a run of PVI of the same layer, covariance={self.covariance}"
            raise SettingError("start_from", "a run without such sites", allowed)
        if places:
            sites = {client: with_outputs(site, old, places) for client, site in sites.items()}
            mean = self.mean(model)
            mean[torch.tensor(places) < 0] = 0
            model = {**model, **tensors_of(mean, last_layer(model), model)}
        dtype = model[last_layer(model)[0]].dtype
        state: dict[str, Tensor] = {}
        for client, site in sites.items():
            state |= of_client(_SITES, older(client), {n: t.to(dtype) for n, t in site.items()})
        return model, state

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global model, and the cavity's slope and statistics."""
        structure, mean = self.structure(server.model), self.mean(server.model)
        held = dict(self._total(server, structure))
        if (own := self.site(server.state, structure, client)) is not None:
            held = {name: tensor - own[name] for name, tensor in held.items()}
        slope = self.prior_precision * mean + held.pop(SLOPE).view_as(mean)
        like = server.model[last_layer(server.model)[0]]
        cavity = {SLOPE: slope.flatten(), **held}
        return {**server.model, **{f"cavity/{n}": t.to(like.dtype) for n, t in cavity.items()}}

    def fit(self, local: Local, received: Tensors) -> Fitted:
        """Find the mode under the cavity, and expand the likelihood there."""
        require_positive_kl_weight(local, "PVI")
        local.load(received)
        structure, head = self.structure(received), Head(local)
        centre = head.weights
        told = {n: received[f"cavity/{n}"].to(centre) for n in (SLOPE, *structure.sizes())}
        slope = told.pop(SLOPE).view_as(centre)
        ridge = self.prior_precision + rounding(structure, received)
        metrics = local.infer(Quadratic(structure, told, ridge, slope, centre))
        mode, power = head.weights, 1 / local.training.kl_weight
        found = {n: power * t for n, t in head.curvature(structure, mode).items()}
        slope = power * head.gradient(mode) + structure.product(found)(centre - mode)
        site = {f"site/{n}": t for n, t in {SLOPE: slope.flatten(), **found}.items()}
        return Fitted({n: t.to(head.layer.weight.dtype) for n, t in site.items()}, metrics)

    def claimed(self, server: Server, reply: Reply) -> Claim:
        """Return what a reply of a full site says of its rows.

        W is the mode that its client has found: that of the product with the reply in its site's
        place. The likelihood's slope there is R + P (W − M).
        """
        structure, mean = self.structure(server.model), self.mean(server.model)
        site = {n: reply.tensors[f"site/{n}"].double() for n in (SLOPE, *structure.sizes())}
        others = {n: s for n, s in self.sites(server.state, structure) if n != reply.client}
        mode = self._product(structure, mean, {**others, reply.client: site}).mode
        times, without = structure.product(site), self._product(structure, mean, others)
        slope = site[SLOPE].view_as(mean) + times(mode - mean)
        bent = unpacked(site["precision"], mean.numel()).diagonal()

        def away(at: Tensor) -> float:
            move = at - without.mode
            return float((move * without.applied(move)).sum()) / 2

        spread = float((mode * times(mode)).sum())
        return Claim(float(bent.max()), float(slope.abs().max()), spread, away)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return the slope and the statistics of a site."""
        structure, like = self.structure(model), model[last_layer(model)[0]]
        sizes = {SLOPE: structure.outputs * structure.inputs, **structure.sizes()}
        return {f"site/{name}": like.new_zeros(size) for name, size in sizes.items()}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Move the sites of those that replied, and go to the mode of the product."""
        structure, mean = self.structure(server.model), self.mean(server.model)
        before = dict(self.sites(server.state, structure))
        nothing = {SLOPE: torch.zeros(mean.numel(), dtype=mean.dtype), **structure.zeros()}
        found = {}
        for reply in replies:
            site = {n: reply.tensors[f"site/{n}"].double() for n in nothing}
            if fault := structure.fault({n: t for n, t in site.items() if n != SLOPE}):
                raise ValueError(f"a site of no convex loss: {fault}")
            found[reply.client] = site
        undamped = self._product(structure, mean, {**before, **found})
        step, kept = self._step(structure, undamped, server, found)
        sites, moved = {**before, **found}, undamped.mode
        if step != 1:
            for client, site in found.items():
                own = before.get(client, nothing)
                sites[client] = {n: torch.lerp(own[n], t, step) for n, t in site.items()}
            moved = self._product(structure, mean, sites).mode
        model, held = self._at(structure, server.model, sites, moved)
        return model, {**kept, **held, **self._own(server, structure, found)}

    def _own(
        self, server: Server, structure: Structure, found: Mapping[str, Tensors]
    ) -> dict[str, Tensor]:
        """Return the first round's full sites with their slopes at 0: under the prior alone."""
        if any(key.startswith(_SITES) for key in server.state):
            return {key: own for key, own in server.state.items() if key.startswith(OWN)}
        held, mean = dict[str, Tensor](), self.mean(server.model)
        if structure.undamped and sum(structure.sizes().values()) <= MOST_OWN:
            for client, site in found.items():
                slope = site[SLOPE] - structure.product(site)(mean).flatten()
                held |= of_client(OWN, client, {**site, SLOPE: slope})
        return held

    def without(self, server: Server, site: str) -> tuple[Tensors, Tensors]:
        """Return the model and the state without a site; the others' expansions stay.

        Raises
        ------
        SettingError
            If there is no such site, or it is the only one.
        """
        structure, mean = self.structure(server.model), self.mean(server.model)
        sites = dict(self.sites(server.state, structure))
        left = {name: own for name, own in sites.items() if whose(name) != site}
        if len(left) == len(sites):
            names = ", ".join(sorted({*map(whose, sites)}))
            raise SettingError("site", site, f"one whose factor the run holds: {names}")
        if not left:
            raise SettingError("site", site, "one of several sites; this is the run's only one")
        moved = self._product(structure, mean, left).mode
        model, state = self._at(structure, server.model, left, moved)
        for client, own in by_client(OWN, server.state).items():
            state |= of_client(OWN, client, own) if client in left else {}
        return model, state

    def step_length(self, model: Tensors, state: Tensors) -> float:
        """Return √⟨r, (λ + Σ P_k) r⟩, r the last step: the most that a contrast has moved."""
        structure, step = self.structure(model), state[RESIDUAL].view_as(self.mean(model))
        products = [structure.product(site)(step) for _, site in self.sites(state, structure)]
        return math.sqrt(float((step * sum(products, self.prior_precision * step)).sum()))

    def _at(
        self,
        structure: Structure,
        before: Tensors,
        sites: Mapping[str, Tensors],
        moved: Tensor,
    ) -> tuple[Tensors, dict[str, Tensor]]:
        """Return the model with another mean, and the sites with their slopes there."""
        names, model, mean = last_layer(before), dict(before), self.mean(before)
        like, kept = before[names[0]], dict[str, Tensor]()
        model |= tensors_of(moved, names, before)
        away = self.mean(model) - mean  # as the model holds it, in its own precision
        for client, site in sorted(sites.items()):
            slope = site[SLOPE].view_as(mean) + structure.product(site)(away)
            held = {**site, SLOPE: slope.flatten()}
            kept |= of_client(_SITES, client, {n: t.to(like.dtype) for n, t in held.items()})
        return model, kept

    def _step(
        self,
        structure: Structure,
        undamped: Product,
        server: Server,
        clients: Collection[str],
    ) -> tuple[float, dict[str, Tensor]]:
        """Return γ of a round, and what the next one's needs: see the module's docstring."""
        who = int.from_bytes(blake2b(repr(sorted(clients)).encode(), digest_size=7).digest())
        state, mean = server.state, self.mean(server.model)
        residual, step = undamped.mode - mean, 1.0
        if not state:
            residual = undamped.mode  # without sites the mode is the prior's, 0
        elif _STEP not in state:
            pass  # the first round of a run that started from another: no new site tells yet
        elif self.damping or structure.undamped:
            step = self.damping or 1.0
        elif _CLIENTS in state and int(state[_CLIENTS]) == who:
            last = state[RESIDUAL].view_as(mean)
            change = residual - last
            bent = undamped.applied(change)
            size = float((change * bent).sum())
            wanted = -float(state[_STEP]) * float((last * bent).sum()) / size if size else 1.0
            step = min(max(wanted, LEAST_STEP), 1.0)
        else:
            step = structure.damping
        held = {RESIDUAL: residual.flatten(), _STEP: torch.tensor(step, dtype=torch.float64)}
        return step, {**held, _CLIENTS: torch.tensor(who)}

    def arrive(self, server: Server, arrivals: Sequence[Arrival]) -> tuple[Tensors, Tensors]:
        """Bring the slopes of arrived sites, R + P (M − M_k), to the mean of now, and move them."""
        structure, mean = self.structure(server.model), self.mean(server.model)
        replies = []
        for each in arrivals:
            held = {n: each.tensors[f"site/{n}"].double() for n in (SLOPE, *structure.sizes())}
            away = structure.product(held)(mean - self.mean(each.sent))
            slope = {f"site/{SLOPE}": held[SLOPE] + away.flatten()}
            replies.append(Reply(each.client, each.weight, {**each.tensors, **slope}))
        return self.aggregate(server, replies)

    def mean(self, model: Tensors) -> Tensor:
        """Return the last layer as a matrix, float64."""
        return matrix(model, last_layer(model))

    def sites(
        self, state: Tensors, structure: Structure
    ) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield clients, by name, with the slope and the statistics of their sites."""
        names = SLOPE, *structure.sizes()
        for client, site in by_client(_SITES, state).items():
            if all(name in site for name in names):
                yield client, {name: site[name].double() for name in names}

    def site(self, state: Tensors, structure: Structure, client: str) -> dict[str, Tensor] | None:
        """Return the slope and the statistics of a client's site; None where it has none."""
        prefix, names = f"site/{quote(client, safe='')}/", (SLOPE, *structure.sizes())
        if any(prefix + name not in state for name in names):
            return None
        return {name: state[prefix + name].double() for name in names}

    def _total(self, server: Server, structure: Structure) -> Mapping[str, Tensor]:
        """Return the sum of all sites, which every message of a round takes one of."""
        if server not in _TOTALS:
            total = {SLOPE: torch.zeros(structure.outputs * structure.inputs).double()}
            total |= structure.zeros()
            for _, site in self.sites(server.state, structure):
                total = {name: tensor + site[name] for name, tensor in total.items()}
            _TOTALS[server] = total
        return _TOTALS[server]

    def _product(self, structure: Structure, mean: Tensor, sites: Mapping[str, Tensors]) -> Product:
        """Return the product, its mode by conjugate gradients: one step where precisions add."""
        held, right = structure.zeros(), -self.prior_precision * mean
        for _, site in sorted(sites.items()):
            right = right - site[SLOPE].view_as(mean)
            held = {name: tensor + site[name] for name, tensor in held.items()}

        products = [structure.product(site) for _, site in sorted(sites.items())]

        def applied(to: Tensor) -> Tensor:
            return sum((times(to) for times in products), self.prior_precision * to)

        solve = structure.solve(held, self.prior_precision)
        move, _ = conjugate_gradients(applied, solve, right, torch.zeros_like(mean))
        return Product(mean + move, applied)
