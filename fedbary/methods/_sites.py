"""Sites: the global posterior as the prior times a factor per client, and how these move.

With natural parameters η = (m/v, 1/v), prior η₀ and sites λ_k, a round of PVI, BayesADMM and FedEP
is one recursion:

    client:  q_k = argmin_q E_q[NLL_k] + κ ρ KL(q ‖ η_g − λ_k/ρ),
    server:  u_k ← β u_k + γ (η(q_k) − η_g),      λ_k ← λ_k + u_k,
             η_g ← (1 − α) mean_k η(q_k) + α (η₀ + Σ_k λ_k),

where κ is the run's kl_weight. A weight whose new precision would not be positive stays as it was;
sites may have any sign, and a cavity's precision is held above 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar
from urllib.parse import quote

import torch
from torch import Tensor

from fedbary.aggregation.covariance import unpacked
from fedbary.aggregation.sums import select_prefix
from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior, gaussian_pairs
from fedbary.inference._steps import Momentum, Steps, Vectors
from fedbary.methods._conditions import Conditions, Unfit
from fedbary.methods._method import (
    Arrival,
    Fitted,
    Inherited,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    age,
    by_client,
    older,
    weighted_mean,
)
from fedbary.methods._server_steps import along_points
from fedbary.predictive import Predictive
from fedbary.settings.config import Settings


@contextmanager
def one_thread() -> Iterator[None]:
    """Let sums within the block run in one order, as by threads they differ in their last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


ROUNDING = 1e-4
"""The part of a matrix's mean eigenvalue that is put down to rounding."""


def centred_scatter(triangle: Tensor, size: int, removed: Tensor) -> Tensor:
    """Return the mean products of (size) numbers without a part that is due to means.

    Raises
    ------
    ValueError
        If what is left has an eigenvalue below 0, beyond rounding: no examples have such sums.
    """
    whole = unpacked(triangle.double(), size)
    left = whole - removed
    ridge = _rounding(whole)
    if torch.linalg.cholesky_ex(left + ridge * torch.eye(size, dtype=left.dtype)).info != 0:
        raise ValueError("no examples have these sums and these products")
    return left


def require_rank(left: Tensor, whole: Tensor, rank: float) -> None:
    """Raise a ValueError if a scatter has a larger rank than its examples allow, beyond rounding.

    Parameters
    ----------
    left, whole : Tensor
        The scatter about means (size, size), and the mean products it is taken from.
    rank : float
        Examples less the means.
    """
    if rank >= len(left):
        return
    values = torch.linalg.eigvalsh(left)
    if values[len(values) - 1 - max(0, int(rank))] > _rounding(whole):
        raise ValueError(f"products of so few examples have no rank above {max(0, int(rank))}")


def require_whole_counts(shares: Tensor, examples: float) -> None:
    """Raise a ValueError if shares of so many examples are no whole numbers, beyond rounding."""
    counts = shares.double() * examples
    if float((counts - counts.round()).abs().max()) > 1e-3 + 2e-7 * examples:
        raise ValueError(f"the classes' counts of {examples:g} examples are no whole numbers")


def _rounding(whole: Tensor) -> float:
    return ROUNDING * float(whole.diagonal().mean().clamp_min(1e-30))


Pull = Callable[[Tensor], tuple[Tensor, Tensor | float]]
"""From the weights θ (P,) what they are pulled to, and s, the precision of that pull."""


def fit_near(local: Local, pull: Callable[[Vectors], Pull], keep: float = 1.0) -> dict[str, float]:
    """Train the network in place by SGD with momentum, and return metrics of the fit.

    The pull is a proximal step, so that any s is stable: with the velocity u of the mean NLL and
    γ = lr s / (n_k (1 − β)),

        θ ← (θ − lr u + γ target) / (1 + γ).

    Parameters
    ----------
    local
        Whose network holds what training starts from; its parameters are points.
    pull
        Given the network's parameters as vectors, the pull.
    keep
        Probability of each weight not to be 0 in a step.
    """
    q = Vectors(local.model, 1.0)
    sgd, towards, value = Momentum(q, local.training, 0.0), pull(q), q.points.value
    lr, scale = local.training.lr, len(local.x) * (1 - local.training.momentum)

    @contextmanager
    def thinned(x: Tensor, y: Tensor) -> Iterator[Tensor]:
        whole = value.clone()
        kept = torch.empty_like(value).bernoulli_(keep, generator=steps.batches.noise)
        value.mul_(kept)
        yield local.nll(local.model(x), y)
        value.copy_(whole)
        q.points.grad.mul_(kept)

    steps = Steps(local, q.points, loss=thinned if keep < 1 else None)
    for _ in steps:
        target, precision = towards(value)
        gamma = lr / scale * precision
        value.sub_(sgd.update(), alpha=lr).add_(gamma * target).div_(1 + gamma)
    return steps.metrics


def packed(q: Vectors, tensors: Tensors) -> Tensor:
    """Return named tensors as a vector in the order of `q.points`."""
    return q.points.pack([tensors[name] for name in q.point_names])


LOG_VARS = "log_var/"
"""The prefix of log-variances' keys, in a method's state and in replies."""

MOST = 40.0
"""The largest magnitude of a log-variance, as strategies admit them."""


def log_vars_of(tensors: Tensors) -> dict[str, Tensor]:
    """Return the log-variances by the names of the weights, held to ±`MOST`."""
    return {name: t.clamp(-MOST, MOST) for name, t in select_prefix(LOG_VARS, tensors).items()}


def log_vars_to_state(log_vars: Tensors) -> dict[str, Tensor]:
    """Return log-variances under the keys of the state, held to ±`MOST`."""
    return {LOG_VARS + name: tensor.clamp(-MOST, MOST) for name, tensor in log_vars.items()}


def predictive(model: Tensors, state: Tensors) -> Predictive:
    """Return the model and the Gaussian around it; points before the first round."""
    return Predictive(model, Posterior(model, log_vars_of(state)))


LEAST_CAVITY_PRECISION = 1e-6
"""The least precision of a cavity: a standard deviation of 1000."""


def acting_prior(method: Method, run: Settings) -> Unfit:
    """Refuse a weight of the prior under which it would not act."""
    if run.local.kl_weight == 0:
        yield "kl_weight", f"above 0 for method={method.name}"


def require_positive_kl_weight(local: Local, method: str) -> None:
    """Raise a SettingError if a client's prior does not act, which a site is found by."""
    if local.training.kl_weight == 0:
        raise SettingError("kl_weight", 0, f"above 0 for method={method}")


class ServerFactorMethod(Method):
    """A method of that recursion; the sites lie at the server, so clients keep nothing."""

    conditions: ClassVar[Sequence[Conditions]] = (acting_prior,)

    unused = ("prior", "prior_std")

    rho = 1.0
    """ρ, how strongly a client is held to its cavity."""

    @property
    def site_momentum(self) -> float:
        """β, each site's own, so that Σ λ_k stays the global factor's where some are away."""
        return 0.0

    def prior(self, like: Mapping[str, Tensor]) -> Factor:
        """Return η₀ for tensors of these shapes."""
        raise TypeError(f"{type(self).__name__} does not say its prior")

    def step(self, replies: int) -> float:
        """Return γ in a round of so many replies."""
        raise TypeError(f"{type(self).__name__} does not say how far a site moves")

    def first_step(self, replies: int) -> float:
        """Return γ in the first round that counts, before which no client has a site."""
        return self.step(replies)

    def mixing(self, clients: int) -> float:
        """Return α where so many clients have a site."""
        return 1.0

    def inherit(self, model: Tensors, inherited: Inherited) -> tuple[Tensors, Tensors]:
        """Keep the sites of the earlier run; of another method's its posterior is one site.

        The prior is then the earlier posterior: η₀ times these sites.
        """
        prior = self.prior(Posterior.from_state_dict(model).log_var)
        if not (sites := factors("site", inherited.state)):
            posterior = _gaussians(inherited.posterior, prior)
            sites = {"": posterior / self.prior(posterior.precision)}
        held = {older(name): inherited.factor(site, prior**0.0) for name, site in sites.items()}
        after = prior
        for _, site in sorted(held.items()):
            after = after * site
        if any(key.startswith("global/") for key in inherited.state):
            after = inherited.factor(factor("global", inherited.state), prior)
        return model, {**self.start(model), **named("global", after), **named_sites("site", held)}

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global posterior, from which the client starts, and its cavity."""
        cavity = self.global_factor(server)
        site = factor(f"site/{quote(client, safe='')}", server.state)
        if site.precision:
            cavity = cavity / site ** (1 / self.rho)
        return {**server.model, **named("cavity", cavity)}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Infer the client's posterior with the cavity as the prior."""
        local.load(received)
        return self.inferred(local, factor("cavity", received))

    def inferred(self, local: Local, cavity: Factor) -> Fitted:
        """Infer from where the network stands, with a cavity as the prior."""
        require_positive_kl_weight(local, self.name)
        training = replace(local.training, kl_weight=self.rho * local.training.kl_weight)
        local = replace(local, training=training)
        metrics = local.infer(cavity.clipped(LEAST_CAVITY_PRECISION))
        return Fitted(local.state(), metrics)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Move the sites of those that replied, and multiply all."""
        self.check(len(replies), 1)
        before = self.global_factor(server)
        sites, velocities = factors("site", server.state), factors("velocity", server.state)
        step = (self.step if _of_this_run(sites) else self.first_step)(len(replies))
        flat = before**0.0
        for reply in replies:
            move = (found(reply) / before) ** step
            if self.site_momentum:
                move = velocities.get(reply.client, flat) ** self.site_momentum * move
                velocities[reply.client] = move
            sites[reply.client] = sites.get(reply.client, flat) * move
        after = self.prior(before.precision)
        for _, site in sorted(sites.items()):
            after = after * site
        if (alpha := self.mixing(_of_this_run(sites))) < 1:
            after = after**alpha
            for reply in replies:
                after = after * found(reply) ** ((1 - alpha) / len(replies))
        state = {"site": sites, "velocity": velocities}
        return advanced(server.model, replies, before, after, state)

    def arrive(self, server: Server, arrivals: Sequence[Arrival]) -> tuple[Tensors, Tensors]:
        """Replace the sites of those that replied, and multiply all.

        A client's new likelihood is its posterior over the cavity that it was sent, however old
        that is. Its site goes a part of the way there, f = 1 − (1 − γ/ρ)^w with the weight w of
        its staleness: λ_k ← λ_k + f (ρ (η(q_k) − cavity) − λ_k). So where w is even, a site has
        moved as far in the same time, however slow its client. The mean of posteriors is that of
        all clients' newest.
        """
        before = self.global_factor(server)
        sites, velocities = factors("site", server.state), factors("velocity", server.state)
        newest = factors("newest", server.state)
        flat = before**0.0
        for each in arrivals:
            step = (self.step if each.client in sites else self.first_step)(each.at_work)
            site = sites.get(each.client, flat)
            likelihood = (found(each) / factor("cavity", each.sent)) ** self.rho
            move = (likelihood / site) ** (1 - (1 - step / self.rho) ** each.counts)
            if self.site_momentum:
                move = velocities.get(each.client, flat) ** self.site_momentum * move
                velocities[each.client] = move
            sites[each.client] = site * move
        after = self.prior(before.precision)
        for _, site in sorted(sites.items()):
            after = after * site
        held = {"site": sites, "velocity": velocities}
        if (alpha := self.mixing(_of_this_run(sites))) < 1:
            newest |= {each.client: found(each) for each in arrivals}
            after, held = after**alpha, {**held, "newest": newest}
            for _, posterior in sorted(newest.items()):
                after = after * posterior ** ((1 - alpha) / len(newest))
        model, state = advanced(server.model, arrivals, before, after, held)
        gaussian = gaussian_pairs(server.model.keys())
        scales = set(gaussian.values())
        points = {n: t for n, t in server.model.items() if n not in gaussian and n not in scales}
        return {**model, **along_points(points, arrivals)}, state

    def global_factor(self, server: Server) -> Factor:
        """Return η_g, the prior before the first round."""
        if any(key.startswith("global/") for key in server.state):
            return factor("global", server.state)
        return self.prior(Posterior.from_state_dict(server.model).log_var)


def advanced(
    model: Tensors,
    replies: Sequence[Reply],
    before: Factor,
    after: Factor,
    held: Mapping[str, Mapping[str, Factor]],
) -> tuple[Tensors, Tensors]:
    """Return the model and the state after a round in which η_g goes from `before` to `after`.

    A weight whose precision would not be positive stays as it was. Deterministic tensors, which
    have no site, are averaged by size.

    Parameters
    ----------
    held
        Further factors that the server holds: by a word, one per client.
    """
    keep = {name: precision > 0 for name, precision in after.precision.items()}
    after = Factor(
        {name: torch.where(keep[name], e, before.shift[name]) for name, e in after.shift.items()},
        {n: torch.where(keep[n], s, before.precision[n]) for n, s in after.precision.items()},
    )
    points = [name for name in Posterior.from_state_dict(model).mean if name in model]
    tensors = after.posterior(weighted_mean(replies, points)).state_dict()
    state = named("global", after)
    for word, sites in held.items():
        state |= named_sites(word, sites)
    return {name: tensors[name].to(like.dtype) for name, like in model.items()}, state


def _of_this_run(sites: Mapping[str, Factor]) -> int:
    """Return how many of the sites are of clients of this run."""
    return sum(not age(name) for name in sites)


def _gaussians(posterior: Posterior, like: Factor) -> Factor:
    """Return the factors of a posterior that have the names of `like`."""
    names = like.precision
    if missing := names.keys() - posterior.log_var.keys():
        allowed = "a run in which this tensor is Gaussian: its posterior is the prior"
        raise SettingError("start_from", f"no variance of {min(missing)!r}", allowed)
    return Factor.of(
        Posterior(*({n: p[n] for n in names} for p in (posterior.mean, posterior.log_var)))
    )


def found(reply: Reply) -> Factor:
    return Factor.of(Posterior.from_state_dict(reply.tensors))


def named(prefix: str, factor: Factor) -> dict[str, Tensor]:
    """Return a factor's tensors under keys with a prefix."""
    shifts = {f"{prefix}/shift/{name}": tensor for name, tensor in factor.shift.items()}
    precisions = {f"{prefix}/precision/{name}": t for name, t in factor.precision.items()}
    return shifts | precisions


def named_sites(word: str, sites: Mapping[str, Factor]) -> dict[str, Tensor]:
    """Return the tensors of clients' factors under keys with a word."""
    held: dict[str, Tensor] = {}
    for client, site in sites.items():
        held |= named(f"{word}/{quote(client, safe='')}", site)
    return held


def factor(prefix: str, tensors: Tensors) -> Factor:
    """Return the factor whose tensors have keys with that prefix."""
    return Factor(
        select_prefix(f"{prefix}/shift/", tensors), select_prefix(f"{prefix}/precision/", tensors)
    )


def factors(word: str, state: Tensors) -> dict[str, Factor]:
    """Return the factors under a word by client."""
    clients = by_client(f"{word}/", state)
    return {client: factor(f"{word}/{quote(client, safe='')}", state) for client in clients}
