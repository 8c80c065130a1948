"""The barycentre of the clients' posteriors under a rule: BA-BFL, and the default.

Clients infer by the local inference of the run. The server aggregates the posteriors q_k of a
round, with weights w_k by size, as `rule` says. A rule is a reverse-KL or Wasserstein-2 barycentre,
an average or a robust rule. RKLB is argmin_q Σ w_k KL(q ‖ q_k). Buffers are averaged. The server
may add momentum. A round began from θ_t, and its aggregate has the means (and deterministic
tensors) m_t:

    u_t = β u_{t−1} + (m_t − θ_t),      θ_{t+1} = θ_t + u_t.

Momentum leaves the scales of Gaussians and buffers as the rule gives them, so variances stay
positive.

With `remember=true` the server keeps each client's newest change, which stands for the client while
it is away (`fedbary.methods._remembered`). It is for mode=async, and for rounds of a part of
the clients, where labels are skewed. Robust rules, clipping and mixing then compare all clients'
newest changes, so they also work without rounds.

It assumes that posteriors factorise over the weights, and that one Gaussian can describe all
clients: differences between clients are averaged, not kept.

Messages: the posterior once each way, 2 numbers per Gaussian weight. Clients keep nothing.

Cost: a client's round is the local inference. The server takes a weighted sum in the rule's
coordinates, in about a plain mean's time, and keeps u. The settings `clipping` and `mixing`,
against hostile clients, go over the replies once more, for K (K + 1)/2 products. With `remember`
the server holds a change of the model for each client.

Use it as the first thing to try, and as the rival of every other method.

References: Jamoussi, Serra, Stavrou and Kountouris, Information-Geometric Barycenters for Bayesian
Federated Learning (BA-BFL). Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification, 2019 (FedAvgM, here with server rate 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from fedbary.aggregation import RULES, AnyRule, RobustRule, Rule, aggregate_tensors, rule_named
from fedbary.aggregation.arriving import Change, along
from fedbary.aggregation.mixing import Mixing
from fedbary.aggregation.sums import LARGEST_LOG_VAR, check_values
from fedbary.aggregation.tensors import new_empty
from fedbary.errors import SettingError
from fedbary.gaussian import gaussian_pairs
from fedbary.methods import _remembered as remembered
from fedbary.methods._method import (
    Arrival,
    Method,
    Reply,
    Server,
    Tensors,
    is_buffer,
    weights_of,
)
from fedbary.methods._server_steps import ServerSGD
from fedbary.parts.parameters import BelowHalf, BelowOne, Ratio


@dataclass(frozen=True)
class Barycentre(Method):
    """The aggregate of the clients' posteriors by a rule (BA-BFL), with momentum of the server.

    Parameters
    ----------
    rule : str or Rule or RobustRule or JointRule
        Name of the rule; in Python also a rule of one's own. Median, TrimmedMean and MultiKrum are
        against hostile clients.
    trim_fraction : float
        Fraction of a round's clients that may be hostile. TrimmedMean, MultiKrum and `mixing` use
        it; other rules do not, and gain no protection by it.
    max_precision_ratio : float or None
        Precisions are clipped to this multiple of the clients' median, weight by weight; none: no
        bound. See `fedbary.aggregation.tensors`.
    clipping : bool
        True: updates longer than the median update, of means or of standard deviations, are
        shortened to it before the rule. See `fedbary.aggregation.mixing`.
    mixing : bool
        True: after clipping, each posterior becomes the mean of its nearest ones, whose updates
        point its way most. `trim_fraction` says how many are honest, and so how many these are.
    server_momentum : float
        β, the server's momentum. It multiplies the clients' progress by up to 1/(1 − β).
    remember : bool
        True: clients that do not reply count with their newest change, as in CA2FL.
    """

    rule: str | AnyRule = "RKLB"
    trim_fraction: BelowHalf = 0.2
    max_precision_ratio: Ratio | None = None
    clipping: bool = False
    mixing: bool = False
    server_momentum: BelowOne = 0.0
    remember: bool = False

    name: ClassVar[str] = "barycentre"

    called_by = "rule"
    deterministic = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.chosen, self._before
        if self.remember and not self.chosen.is_mean:
            kept = ", ".join(name for name, rule in RULES.items() if rule.is_mean)
            raise SettingError("rule", self.chosen.name, f"for remember=true: {kept}")

    @property
    def chosen(self) -> AnyRule:
        """The rule, a robust one with its fraction of hostile clients."""
        rule = rule_named(self.rule) if isinstance(self.rule, str) else self.rule
        if isinstance(rule, RobustRule):
            return replace(rule, trim_fraction=self.trim_fraction)
        return rule

    @property
    def _before(self) -> Mixing | None:
        """Return the step before the rule, if there is one."""
        if not (self.clipping or self.mixing):
            return None
        return Mixing(self.trim_fraction, self.mixing)

    def held(self, clients: int) -> int:
        """Return the global model, and the clients' changes if it remembers them."""
        return clients + 1 if self.remember else 1

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the aggregate, moved on by the momentum; log-variances end at ±39.6."""
        if self.remember:
            every, count = math.fsum(reply.weight for reply in replies), len(replies)
            return self.arrive(
                server,
                [
                    Arrival(r.client, r.weight, r.tensors, server.model, r.weight / every, count)
                    for r in replies
                ],
            )
        found = self._of_round(server, replies)
        moved, velocity = self._moved(server, found)
        return {name: moved.get(name, found[name]) for name in server.model}, velocity

    def _of_round(self, server: Server, replies: Sequence[Reply]) -> Tensors:
        """Return the rule's aggregate; log-variances end at ±39.6."""
        return aggregate_tensors(
            self.chosen,
            [reply.tensors for reply in replies],
            [reply.weight for reply in replies],
            self.max_precision_ratio,
            mixing=self._before,
            centre=server.model,
            least_dtype=torch.float32,
            largest_log_var=LARGEST_LOG_VAR,
            empty=server.empty,
        )

    @property
    def _compared(self) -> str | None:
        """Return the name of a parameter that makes a round compare its replies, if any does."""
        if not (isinstance(self.chosen, Rule) and self.chosen.is_mean):
            return "rule"
        steps = ("clipping", "mixing", "max_precision_ratio")
        return next((name for name in steps if getattr(self, name)), None)

    def check_arrivals(self) -> None:
        """Refuse what compares the replies of a round, unless the server remembers all."""
        super().check_arrivals()
        if self.remember or (name := self._compared) is None:
            return
        value, allowed = getattr(self, name), "no value"
        if name == "rule":
            value, kept = self.chosen.name, RULES.items()
            allowed = ", ".join(n for n, r in kept if isinstance(r, Rule) and r.is_mean)
        more = "or remember=true, which compares all clients' newest changes"
        raise SettingError(name, value, f"for mode=async: {allowed}; {more}")

    def arrive(self, server: Server, arrivals: Sequence[Arrival]) -> tuple[Tensors, Tensors]:
        """Go along the replies' changes, beside those remembered, then on by the momentum."""
        newest: Tensors = {}
        if self.remember:
            apart = replace(server, empty=new_empty)
            by = partial(self._of_round, apart)
            found, newest = remembered.step(server, arrivals, by, self._compared is not None)
        else:
            buffers = [name for name, tensor in server.model.items() if is_buffer(name, tensor)]
            changes = [Change(each.sent, each.tensors, each.part) for each in arrivals]
            found = along(self.chosen, server.model, changes, buffers, LARGEST_LOG_VAR)
        moved, velocity = self._moved(server, found)
        return {**found, **moved}, {**velocity, **newest}

    def _moved(self, server: Server, found: Tensors) -> tuple[Tensors, Tensors]:
        """Return what momentum makes of some tensors of the aggregate, and the momentum.

        A step that leaves what is admitted is not taken, and momentum starts anew.
        """
        if self.server_momentum == 0:
            return {}, {}
        pairs = gaussian_pairs(found.keys())
        gradient = {name: server.model[name] - found[name] for name in weights_of(found)}
        steps, velocity = ServerSGD(momentum=self.server_momentum).step(gradient, server.state)
        moved = {name: server.model[name] - step for name, step in steps.items()}
        for name, tensor in moved.items():
            try:
                check_values(tensor, name in pairs)
            except ValueError as error:
                server.warn(f"the server's momentum starts anew: tensor {name!r}: {error}")
                return {}, {}
        return moved, velocity
