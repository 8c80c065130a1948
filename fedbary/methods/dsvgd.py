"""DSVGD: global particles, and those of each client's data, by Stein variational gradient descent.

The global density is q. Client k's density t_k is the prior p_0 times the likelihood of its data,
so q = p_0 Π_k t_k / p_0. A client moves M particles from the global ones by SVGD along

    log q − log t_k + log p_0 + n_k · mean log-likelihood / T,

and these are its q_k. The server moves particles by SVGD, too: those of t_k along log t_k + γ (log
q_k − log q), and the global ones along log q + γ Σ_k (log q_k − log q), over the round's replies.
With γ = 1 and one client per round, as published, q becomes q_k. At a fixed point q is the
posterior of all data, with the prior counted once: the recursion is PVI's, over particles. In the
beginning there are no particles, and q and t_k are p_0 = N(0, prior_std²).

A density is a mixture of Gaussians around the particles, of the std `width`, 0.55 as published.
With `width=0` it is one Gaussian per weight, with the mean and variance of the particles. This
finds posteriors narrower than 0.55. It works for one to three weights: quotients of such densities
are rough, and with ten weights the recursion diverged. The published width does not diverge, but it
blurs what clients tell about one another.

An exact site t_k is never narrower than q. If one is narrower in a weight, the quotient q/t_k is no
density there, and particles would run away. For such a weight

- the client leaves q/t_k out, so its q_k is the prior times its own likelihood;
- the server takes q_k for t_k, and the product of all sites, p_0 Π_k t_k / p_0, for q.

If a quotient q_k/q would make a density wider than the prior, t_k stays, and the server takes that
product, too. It warns if the variances of q more than double in a round.

This rule was tried on one weight and three clients of 8, 20 and 60 examples, for 24 rounds. With
one client per round, means were within .5 of the posterior's std (241 without the rule), and
variances .5 to 1 of the posterior's. With all three per round means drift by up to 1 std, and
variances fall to .2 to .65.

It assumes few weights: in many dimensions SVGD's particles lie too close together. 20 of them have
27 % of the variance of 10 weights, and 3 % of that of 100.

Messages: 2 M + 1 models down (the global particles and t_k), M up; clients keep nothing. In the
paper a client keeps t_k and moves it itself, with the same result. Here t_k lies at the server, so
after a lost reply both sides still agree.

Cost: a local step costs M of SGD's, of small networks in one batched product. The server holds M
networks of each client. It refuses more particles than fit into half of the memory.

Use it for small networks, such as those of regressions and tables, whose posterior is no Gaussian.

`lr` is about the size of a step in each weight, whatever the gradient (published: 200 steps of
0.001, batches of 100). Take less than for SGD: at 0.01 and above a network of images diverges.
`momentum` and `weight_decay` do nothing.

Traps of the public code: log(KDE + 1e-10) of a normalised density with std 0.55 in each weight has
a gradient of exactly 0 at a few hundred weights. The cavity q/t_k is then inert, and clients train
on their own data alone. Clients do nothing in the first round. Its "llh" for classes is the
logarithm of the largest probability.

Reference: Kassab and Simeone, Federated Generalized Bayesian Learning via Distributed Stein
Variational Gradient Descent, IEEE Transactions on Signal Processing 2022 (arXiv 2009.06419).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import torch
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.errors import SettingError
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    by_client,
    require_room,
    weighted_mean,
)
from fedbary.methods._particles import (
    Normal,
    Smooth,
    Swarm,
    centre,
    descended,
    filled,
    matrix,
    named,
    scattered,
    stacked,
)
from fedbary.methods._sites import one_thread
from fedbary.parts.parameters import Count, NotNegative, Positive, Several, ShareOrZero
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Members
from fedbary.seeds import derive_seed

_GLOBAL, _START, _SITE = "particles/", "start/", "site/"

Density = Smooth | Normal

WIDER = 2.0
"""The largest growth of variances in a round, as a geometric mean, without a warning."""


@dataclass(frozen=True)
class DSVGD(Method):
    """Distributed Stein variational gradient descent (Kassab and Simeone 2022), for point weights.

    Parameters
    ----------
    particles : int
        M, the number of particles of a density.
    width : float
        Std of the Gaussians around particles that make a density; 0: from their own spread.
    prior_std : float
        Standard deviation of the prior p_0 = N(0, prior_std²).
    temperature : float
        T: the likelihood of the data is raised to the power 1/T.
    damping : float
        γ, the part of the way that a client's density moves. 0, the default: 1 over the replies of
        a round; one client a round then moves all the way.
    server_steps : int
        Steps of SVGD at the server for each density.
    server_rate : float
        Initial size of these steps, in standard deviations of the particles.
    init_std : float
        Standard deviation of the particles around the global network at the start.
    """

    particles: Several = 20
    width: NotNegative = 0.55
    prior_std: Positive = 1.0
    temperature: Positive = 1.0
    damping: ShareOrZero = 0.0
    server_steps: Count = 200
    server_rate: Positive = 0.05
    init_std: Positive = 0.1

    deterministic = True
    members = Members
    unused = ("momentum", "weight_decay", "max_grad_norm")

    def check(self, clients: int, epochs: int) -> None:
        """Refuse a damping with which a round of so many clients would diverge."""
        if self.damping * clients > 1:
            allowed = f"at most 1/{clients}: with {clients} replies a larger one diverges"
            raise SettingError("damping", self.damping, allowed)

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return self.particles * (2 * clients + 1)

    def send(self, server: Server, client: str) -> Tensors:
        """Return the model, the global particles, and the client's where it has some."""
        prefix = _GLOBAL if server.state else _START
        site = select_prefix(_site(client), server.state)
        return {**server.model, **named(prefix, self._start(server)), **named(_SITE, site)}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Move the global particles towards the cavity times the client's likelihood."""
        model = {name: received[name] for name in local.model.state_dict()}
        require_room("particles", self.particles, model)
        local.load(model)
        together, site = select_prefix(_GLOBAL, received), select_prefix(_SITE, received)
        swarm = Swarm(local, together or select_prefix(_START, received))
        prior = Normal(self.prior_std)

        def density(held: Tensors) -> Density:
            return Smooth(swarm.pack(held).to(swarm.x), self.width) if held else prior

        q, t = density(together), density(site)
        carried = (q.precision >= t.precision).to(swarm.x)
        metrics = swarm.climb(lambda x: carried * (q(x) - t(x)) + prior(x), 1 / self.temperature)
        return Fitted(swarm.networks(), metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return M networks, stacked."""
        return stacked(model, self.particles)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Move the densities of the clients that replied, then the global one."""
        self.check(len(replies), 1)
        damping, like = self.damping or 1 / len(replies), server.model
        before, prior = self._start(server), Normal(self.prior_std)
        state = {name: t for name, t in server.state.items() if name.startswith(_SITE)}
        with one_thread():
            q = self._density(matrix(before, like)) if server.state else prior
            found = [matrix(reply.tensors, like).double() for reply in replies]
            moves = [self._density(rows) for rows in found]
            counts = torch.ones(found[0].shape[1], dtype=torch.bool)
            for reply, rows, q_k in zip(replies, found, moves, strict=True):
                held = select_prefix(_site(reply.client), state)
                start = matrix(held, like).double() if held else rows
                t = self._density(start) if held else prior
                carried = q.precision >= t.precision
                exists = self._exists(t, q, [q_k], damping)
                moved = torch.where(exists, self._moved(start, t, q, [q_k], damping), start)
                moved = torch.where(carried, moved, rows)
                counts &= exists & carried
                state |= named(_site(reply.client), filled(moved, reply.tensors, like))
            rows = torch.stack(found).mean(0)
            if damping < 1:
                rows = self._moved(rows, q, q, moves, damping)
            if server.state:
                counts &= self._exists(q, q, moves, damping)
                if not bool(counts.all()):
                    rows = torch.where(counts, rows, self._product(before, state, like))
                self._warn(server, q, self._density(rows))
        together = filled(rows, weighted_mean(replies, list(before)), like)
        return centre(together), {**state, **named(_GLOBAL, together)}

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the global particles."""
        return Predictive(model, members=select_prefix(_GLOBAL, state))

    def _start(self, server: Server) -> dict[str, Tensor]:
        """Return the global particles; before the first round that counts, ones drawn anew."""
        return select_prefix(_GLOBAL, server.state) or scattered(
            server.model, self.particles, self.init_std, derive_seed(server.seed, "particles")
        )

    def _density(self, rows: Tensor) -> Smooth:
        return Smooth(rows.double(), self.width)

    def _moved(
        self, start: Tensor, of: Density, q: Density, moves: Sequence[Density], damping: float
    ) -> Tensor:
        """Return particles of the density `of` times Π_k (q_k / q)^γ."""

        def score(x: Tensor) -> Tensor:
            steps = torch.stack([move(x) for move in moves]).sum(0) - len(moves) * q(x)
            return of(x) + damping * steps

        return descended(start, score, self.server_steps, self.server_rate)

    def _product(self, start: Tensors, state: Tensors, like: Tensors) -> Tensor:
        """Return particles of p_0 Π_k (t_k / p_0) over all sites that there are."""
        prior, held = Normal(self.prior_std), by_client(_SITE, state).values()
        sites = [self._density(matrix(site, like)) for site in held]

        def score(x: Tensor) -> Tensor:
            return torch.stack([t(x) - prior(x) for t in sites]).sum(0) + prior(x)

        return descended(matrix(start, like).double(), score, self.server_steps, self.server_rate)

    def _exists(self, of: Density, q: Density, moves: Sequence[Density], damping: float) -> Tensor:
        """Return in which weights `of` times Π_k (q_k / q)^γ is no wider than the prior."""
        gain = torch.stack([move.precision for move in moves]).sum(0) - len(moves) * q.precision
        return of.precision + damping * gain >= self.prior_std**-2

    def _warn(self, server: Server, before: Density, after: Density) -> None:
        """Warn of variances that grow, which those of all data do not."""
        wider = float((before.precision / after.precision).log().mean().exp())
        if wider > WIDER:
            server.warn(
                f"the particles' variances have grown {wider:.3g} times: DSVGD may diverge; "
                "fewer rounds, more particles or a lower lr may help"
            )


def _site(client: str) -> str:
    return f"{_SITE}{quote(client, safe='')}/"
