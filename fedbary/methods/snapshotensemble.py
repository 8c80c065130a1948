"""SnapshotEnsemble: the step size falls to 0 in cycles, and the models at their ends predict.

Rounds come in cycles of C. In round t, from 1, clients train at

    lr · ½ (1 + cos(π ((t − 1) mod C) / C)),

from the full rate in a cycle's first round towards 0 in its last, and the server takes the
aggregate of a rule, see `Barycentre`. The model at the end of a cycle is a snapshot. The next cycle
begins there, at the full rate, and leaves for another optimum. Predictions mix the last M
snapshots. A snapshot that is a posterior gives its part of the draws, one of point weights a single
network. Before the first cycle ends, the global model predicts. Rounds after the last whole cycle
do not change the predictions. If the last round of a cycle is skipped, for lack of replies, there
is no snapshot.

It assumes that a cycle is long enough to converge, and that its first steps are large enough to
leave the optimum.

Messages: the model once each way, as under the rule. Clients that score predictions on held-out
examples are also sent the M snapshots. Clients keep nothing.

Cost: a client's round is the local inference; the server keeps M models. A prediction takes as many
draws as that of one posterior, and M passes through the layers before the first Gaussian one. It
takes M passes of networks with point weights.

Use it if there are many rounds: it spends the budget of one long training on several networks.

The paper is for one machine, with M of 5 to 6 and epochs for rounds. FedSWA has such cycles in a
federation, and averages the ends' weights without an ensemble.

References: Huang et al., Snapshot Ensembles: Train 1, Get M for Free, ICLR 2017; Caldarola, Caputo
and Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedbary.errors import SettingError
from fedbary.methods.barycentre import Barycentre
from fedbary.methods.shared.method import Fitted, Local, Method, Reply, Server, Tensors
from fedbary.parts.parameters import Count
from fedbary.predictive import Predictive

_SNAPSHOT = "snapshot/"


@dataclass(frozen=True)
class SnapshotEnsemble(Barycentre):
    """An ensemble of a cyclic schedule's ends (Huang et al. 2017), under any rule.

    Parameters
    ----------
    cycle : int
        C, the number of rounds in which the step size falls from `lr` towards 0.
    snapshots : int
        M, the number of newest snapshots that predict.

    The others are those of `Barycentre`.
    """

    cycle: Count = 5
    snapshots: Count = 5

    name: ClassVar[str] = "SnapshotEnsemble"

    called_by = "method"
    unused = ("lr_schedule",)
    has_members = True
    shows = True

    def check_rounds(self, rounds: int, patience: int) -> None:
        """Refuse rounds without a whole cycle, and an end that comes while a cycle still falls."""
        if self.cycle > rounds:
            raise SettingError("cycle", self.cycle, f"at most rounds={rounds}: no cycle would end")
        if 0 < patience < self.cycle:
            allowed = f"0, or at least cycle={self.cycle}: scores improve only at a cycle's end"
            raise SettingError("patience", patience, allowed)

    def check_arrivals(self) -> None:
        """Refuse: a cycle is one of rounds."""
        Method.check_arrivals(self)

    def held(self, clients: int) -> int:
        """Return the snapshots and the global model."""
        return self.snapshots + 1

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Infer from the global model at the round's rate."""
        passed = (local.round - 1) % self.cycle / self.cycle
        lr = local.training.lr * (1 + math.cos(math.pi * passed)) / 2
        job = replace(local, training=replace(local.training, lr=lr))
        return super().fit(job, received, kept)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the rule's aggregate; the last of a cycle joins the snapshots."""
        held = _snapshots(server.state)
        others = {n: tensor for n, tensor in server.state.items() if n not in held}
        model, velocity = super().aggregate(replace(server, state=others), replies)
        if server.round % self.cycle == 0:
            held = {
                _SNAPSHOT + name: _joined(held.get(_SNAPSHOT + name), tensor, self.snapshots)
                for name, tensor in model.items()
            }
        return model, {**velocity, **held}

    def show(self, server: Server, client: str) -> Tensors:
        """Return the global model and the snapshots."""
        return {**server.model, **_snapshots(server.state)}

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the snapshots, oldest first; none before a cycle has ended."""
        members = {n.removeprefix(_SNAPSHOT): tensor for n, tensor in _snapshots(state).items()}
        return replace(super().predictive(model, state), members=members)


def _snapshots(state: Tensors) -> dict[str, torch.Tensor]:
    """Return the stacked snapshots, by the state's keys."""
    return {name: tensor for name, tensor in state.items() if name.startswith(_SNAPSHOT)}


def _joined(held: torch.Tensor | None, newest: torch.Tensor, most: int) -> torch.Tensor:
    """Return the newest so many of stacked tensors and one more."""
    both = newest[None] if held is None else torch.cat([held, newest[None]])
    return both[-most:].clone()
