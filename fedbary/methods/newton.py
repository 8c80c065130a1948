"""Newton's method by sums: the mode of all rows and its curvature, from sums over the sites.

The server sends the point v, all weights of a generalised linear model. Site k answers the value
f_k, the gradient g_k and the Hessian H_k of its negative log-likelihood there. With the prior
N(0, 1/λ), counted once,

    f = λ/2 ‖v‖² + Σ_k f_k,    g = λ v + Σ_k g_k,    Λ = λ + Σ_k H_k,    v ← v − γ Λ⁻¹ g.

γ is 1, less where a weight would move by more than 4. It is halved until f falls, or until gᵀ Λ⁻¹ g
is a quarter of what it was: a site that lies of its value alone stops nothing. Where Λ has
eigenvalues below 0, their absolute values count, and f has to fall. The fixed point is the mode of
all rows, whatever the split. The posterior is N(v, Λ⁻¹) there.

With random intercepts of sites the last coordinate of v is η = log τ. The prior of τ is
half-normal, so that −log p(η) = τ²/(2 s²) − η. A step moves η by 1 at most.

A site that is silent keeps its last quadratic. At a point that lies δ from its own it counts with

    f_k + g_kᵀ δ + ½ δᵀ H_k δ,    g_k + H_k δ,    H_k.

f is compared with what it was as one function: a site that was silent before counts by its old
quadratic, and one that is new not at all. So a site whose budget is spent, or that is lost, stays
in the sums, and one that returns stops no step.

Only sums enter, in float64. So masks that cancel in the sum change nothing: the server learns no
site's numbers (`masked=true`), and the state holds sums alone.

It assumes that each site answers once the others are near the mode. With masks all must answer.

Messages: down p weights; up 1 + p + p (p + 1)/2 numbers. Clients keep nothing.

Cost: a pass over the rows a round, 5 to 9 rounds. `PVI` takes 4 to 5, and its sites find a mode.

Use it where a server must not see a site's numbers, and for models whose sites have no convex
loss. Otherwise `PVI` needs fewer answers of a site, and knows the mode that each finds alone.

Reference: McCullagh and Nelder, Generalized Linear Models, 1989, section 2.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fedbary.aggregation.covariance import Full, packed, unpacked
from fedbary.errors import SettingError
from fedbary.inference._head import Head
from fedbary.methods._conditions import Unfit
from fedbary.methods._curvature import last_layer, matrix, tensors_of
from fedbary.methods._expanded import MOST_NUMBERS, RESIDUAL, Claim
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    by_client,
    of_client,
    weights_of,
)
from fedbary.parts.parameters import Positive, declared
from fedbary.settings.config import Settings
from fedbary.settings.owners import task_kind
from fedbary.texts import listed

VALUE, GRADIENT, HESSIAN = "sums/value", "sums/gradient", "sums/hessian"
"""The keys of what a client sends, and of the sums over clients in the state."""

POINT, PART, AWAY = "sums/point", "step/part", "sums/away"
"""The keys of v at the sums, of γ, and of masked rounds without some sites."""

SITE, ALL = "site/", ""
"""The prefix of the sites' last quadratics in a state, each with its point; the name of all."""

OVERFLOWS = "step/overflows"
"""The key of how many steps were shortened as a site's likelihood overflowed."""

STDS = "sums/stds"
"""The key of how many coordinates at the end of v are logarithms of standard deviations."""

HUGE = 1e150
"""The value where a site's likelihood overflows; gradient and Hessian are 0 there.

Larger numbers are refused as they arrive.
"""

LONGEST = 4.0
"""The most that a weight moves in a round; layers of such models see columns of variance 1."""

PATIENCE = 2
"""Rounds in which the step is shortened, before masked sums of fewer sites end the run."""

MOST_OVERFLOWS = 12
"""Steps that are shortened for overflows, before a site that claims one counts as silent."""

FALLS, ROUNDING = 1e-4, 1e-10
"""The part of the expected fall that f must have, and of f that is rounding."""

_FLAT = 1e-12
"""Part of the largest eigenvalue to which the size of another is raised."""


def of_sums(method: Newton, run: Settings) -> Unfit:
    """Refuse what has no terms, and rounds that some sites have no part in."""
    named = f"method={method.name}"
    if "terms" not in declared(task_kind(run.task).Parameters):
        yield "method", f"another for task={run.task}: {named} is for task=glm and task=survival"
    if run.participants < run.clients:
        yield "participation", f"1 for {named}: a step is of all sites' sums"
    if dict(run).get("compress", "none") != "none":
        yield "compress", f"none for {named}: its sums have 64 bits"
    if run.max_weight_ratio != "none":
        yield "max_weight_ratio", f"none for {named}: its sums count each row once"
    if run.start_from != "none":
        yield "start_from", f"none for {named}: it keeps no factors of earlier rows"


@dataclass(frozen=True)
class Newton(Method):
    """Newton's method by sums of values, gradients and Hessians.

    Parameters
    ----------
    prior_std : float
        Standard deviation of the prior N(0, prior_std²).
    intercept_std : float
        s, the scale of the half-normal prior of the standard deviation τ of random intercepts.
    masked : bool
        True: clients mask what they send, and masks cancel in the sum over all. The server then
        checks no single site, and needs the answers of all.
    """

    prior_std: Positive = 10.0
    intercept_std: Positive = 2.5
    masked: bool = False

    deterministic = True
    often = 8
    defaults = MappingProxyType({"model": "linear", "inference": "variational"})
    conditions = (of_sums,)
    unused = ("local_epochs", "lr", "momentum", "weight_decay", "lr_schedule")

    def start(self, model: Tensors) -> Tensors:
        """Refuse a layer whose Hessian is too large; there is no state yet."""
        numbers = sum(tensor.numel() for tensor in self.reply_like(model).values())
        if numbers > MOST_NUMBERS:
            said = f"{len(vector_of(model)):,} weights, {numbers:,} numbers a client"
            raise SettingError("model", said, f"a model of at most {MOST_NUMBERS:,} numbers")
        return {}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Expand the site's negative log-likelihood at the point; nothing is trained."""
        local.load(received)
        value, gradient, hessian = Head(local).expanded(vector_of(received))
        found = {VALUE: value.reshape(1), GRADIENT: gradient, HESSIAN: packed(hessian)}
        if not all((tensor.abs() < HUGE).all() for tensor in found.values()):
            found = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
            found[VALUE] += HUGE
        return Fitted(found, {})

    def reply_like(self, model: Tensors) -> Tensors:
        """Return value, gradient and the Hessian's triangle, float64."""
        size = len(vector_of(model))
        sizes = {VALUE: 1, GRADIENT: size, HESSIAN: size * (size + 1) // 2}
        return {name: torch.zeros(held, dtype=torch.float64) for name, held in sizes.items()}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Add the sites, and take a step: from here if f fell, else a shorter one from before."""
        before, point = dict(server.state), vector_of(server.model)
        told = {each.client: _quadratic(each, point) for each in replies}
        if self.masked:
            if len(replies) < server.clients:
                return self._waited(server, before, len(replies))
            told = {ALL: {**_added(told), POINT: point.clone()}}
        if POINT in before and (high := [c for c, q in told.items() if float(q[VALUE]) >= HUGE]):
            times = int(before.get(OVERFLOWS, torch.tensor(0))) + 1
            before[OVERFLOWS] = torch.tensor(times)
            if self.masked or times <= MOST_OVERFLOWS:
                return self._moved(server, before, 1 / 8)
            server.warn(f"the likelihood of {listed(high)} overflows: an earlier answer counts")
            told = {client: site for client, site in told.items() if client not in high}
        known = by_client(SITE, before)
        if known:
            again = [c for c in told.keys() & known if known[c][POINT].equal(before[POINT])]
            here = self._sums(server, {**known, **{c: told[c] for c in again}})
            if not self._falls(before, here):
                return self._moved(server, before, 1 / 2)
        sums = self._sums(server, {**known, **told})
        precision, slope = self.precision(sums), self._slope(sums)
        sums[RESIDUAL] = _descent(precision, slope)
        longest = sums[RESIDUAL].abs() / LONGEST
        longest[len(longest) - int(sums[STDS]) :] *= LONGEST
        sums[PART] = (1 / longest.max()).clamp_max(1)
        for client, site in {**known, **told}.items():
            sums |= of_client(SITE, client, site)
        kept = {key: before[key] for key in (OVERFLOWS,) if key in before}
        return self._moved(server, {**kept, **sums}, 1.0)

    def _waited(self, server: Server, before: Tensors, replies: int) -> tuple[Tensors, Tensors]:
        """Return a shorter step from before, as masks of fewer sites do not cancel."""
        away = int(before.get(AWAY, torch.tensor(0))) + 1
        if POINT in before and away <= PATIENCE:
            return self._moved(server, {**before, AWAY: torch.tensor(away)}, 1 / 8)
        said = f"true, and {replies} of {server.clients} sites replied"
        raise SettingError("masked", said, "replies of all sites")

    def _sums(self, server: Server, sites: Mapping[str, Tensors]) -> dict[str, Tensor]:
        """Return the sums over sites, and where they are."""
        point = vector_of(server.model)
        stds = torch.tensor(len(point) - self._layer(server))
        seen = {client: seen_from(site, point) for client, site in sites.items()}
        return {**_added(seen), POINT: point, STDS: stds}

    def _falls(self, before: Tensors, sums: Tensors) -> bool:
        """Return whether f fell by a part of what the slope lets expect, or gᵀ Λ⁻¹ g fell."""
        here, there = self._energy(sums), self._energy(before)
        expected = float(self._slope(before) @ before[RESIDUAL])
        if here <= there + FALLS * float(before[PART]) * expected + ROUNDING * (1 + abs(there)):
            return True
        if any(torch.linalg.cholesky_ex(self.precision(each)).info for each in (before, sums)):
            return False
        slope = self._slope(sums)
        return float(slope @ _descent(self.precision(sums), slope)) >= expected / 4

    def _moved(self, server: Server, sums: Tensors, times: float) -> tuple[Tensors, Tensors]:
        """Return the model a step from the sums' point, with γ times a number, and the state."""
        held = {**sums, PART: times * sums[PART]}
        return {**server.model, **of_vector(mode_of(held), server.model)}, held

    def _energy(self, sums: Tensors) -> float:
        """Return f, in nats."""
        return float(sums[VALUE]) + self._prior(sums)[0]

    def _slope(self, sums: Tensors) -> Tensor:
        """Return g, (p,)."""
        return sums[GRADIENT] + self._prior(sums)[1]

    def precision(self, sums: Tensors) -> Tensor:
        """Return Λ of the sums in a state, (p, p)."""
        hessian = unpacked(sums[HESSIAN], len(sums[POINT]))
        return hessian + self._prior(sums)[2].diag()

    def _prior(self, sums: Tensors) -> tuple[float, Tensor, Tensor]:
        """Return −log p(v) but for a constant, its slope, and its Hessian's diagonal."""
        point, stds = sums[POINT], int(sums[STDS])
        weights, logs = point[: len(point) - stds], point[len(point) - stds :]
        part = (2 * logs).exp() / self.intercept_std**2
        held = float(weights.square().sum()) / (2 * self.prior_std**2)
        bend = torch.full_like(weights, self.prior_std**-2)
        slope = torch.cat([weights / self.prior_std**2, part - 1])
        return held + float((part / 2 - logs).sum()), slope, torch.cat([bend, 2 * part])

    def step_length(self, model: Tensors, state: Tensors) -> float:
        """Return √⟨d, |Λ| d⟩ = √⟨−g, d⟩, d the whole step: the most that a contrast would move."""
        return math.sqrt(max(0.0, -float(self._slope(state) @ state[RESIDUAL])))

    def fault(self, server: Server, reply: Reply) -> str | None:
        """Say why a reply is of no loss that is convex in the layer; None if it may be."""
        layer = self._layer(server)
        hessian = unpacked(reply.tensors[HESSIAN].double(), len(reply.tensors[GRADIENT]))
        return Full(1, layer).fault({"precision": packed(hessian[:layer, :layer])})

    def claimed(self, server: Server, reply: Reply) -> Claim:
        """Return what a reply says of its rows at the point; its own value bounds their loss."""
        point, layer = vector_of(server.model), self._layer(server)
        hessian = unpacked(reply.tensors[HESSIAN].double(), len(point))[:layer, :layer]
        point, slope = point[:layer], reply.tensors[GRADIENT][:layer]
        bent, spread = float(hessian.diagonal().max()), float(point @ hessian @ point)
        value = max(0.0, float(reply.tensors[VALUE]))
        return Claim(bent, float(slope.abs().max()), spread, lambda at: value)

    def _layer(self, server: Server) -> int:
        """Return the number of weights of the last layer, with which v begins."""
        return sum(server.model[name].numel() for name in last_layer(server.model))


def mode_of(sums: Tensors) -> Tensor:
    """Return the point after the step from a state's sums, (p,) float64."""
    return sums[POINT] + sums[PART] * sums[RESIDUAL]


def vector_of(model: Tensors) -> Tensor:
    """Return the last layer row by row, its bias last in each, then all other weights, float64."""
    names = last_layer(model)
    others = [model[name].double().flatten() for name in weights_of(model) if name not in names]
    return torch.cat([matrix(model, names).flatten(), *others])


def of_vector(vector: Tensor, model: Tensors) -> dict[str, Tensor]:
    """Return the weights of a vector, in the shapes and dtypes of the model's."""
    names = last_layer(model)
    layer = matrix(model, names)
    others = [name for name in weights_of(model) if name not in names]
    parts = vector.split([layer.numel(), *(model[name].numel() for name in others)])
    found = tensors_of(parts[0].view_as(layer), names, model)
    for name, part in zip(others, parts[1:], strict=True):
        found[name] = part.view_as(model[name]).to(model[name].dtype)
    return found


def _quadratic(reply: Reply, point: Tensor) -> dict[str, Tensor]:
    """Return a reply's value, gradient and Hessian in float64, and where they are."""
    found = {name: reply.tensors[name].double() for name in (VALUE, GRADIENT, HESSIAN)}
    return {**found, POINT: point.clone()}


def seen_from(site: Tensors, point: Tensor) -> dict[str, Tensor]:
    """Return value, gradient and Hessian of a site's quadratic at another point, (p,)."""
    move = point - site[POINT]
    bent = unpacked(site[HESSIAN], len(move)) @ move
    value = site[VALUE] + move @ (site[GRADIENT] + bent / 2)
    return {VALUE: value, GRADIENT: site[GRADIENT] + bent, HESSIAN: site[HESSIAN]}


def _added(sites: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Return the sums of sites' values, gradients and Hessians."""
    held = [sites[client] for client in sorted(sites)]
    return {n: torch.stack([site[n] for site in held]).sum(0) for n in (VALUE, GRADIENT, HESSIAN)}


def _descent(precision: Tensor, slope: Tensor) -> Tensor:
    """Return −|Λ|⁻¹ g, along which f falls: the eigenvalues' sizes count."""
    values, vectors = torch.linalg.eigh(precision)
    sizes = values.abs().clamp_min(_FLAT * float(values.abs().max()))
    return -(vectors @ ((vectors.T @ slope) / sizes))
