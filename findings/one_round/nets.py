"""One round of a network from scratch: `nets.csv`.

    python -m findings.one_round.nets findings/one_round/nets.yaml findings/one_round DATA_DIR

DATA_DIR holds Fashion-MNIST. The federation is that of `findings/curvature`: 3,000 images, ten
clients, a hidden layer. Every client trains from the same start, and the rules share what it finds.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedbary.methods._curvature import product_mode
from fedbary.settings.config import read_yaml, resolve
from findings.curvature.side_by_side import Member, SideBySide
from findings.one_round.measure import Data, Head, Table, scores
from findings.truth.federation import Federation

Matrices = list[Tensor]
"""A matrix (…, out, in + 1) of each layer, the bias as the last column."""


class Client(NamedTuple):
    """What a client has found from some starts: weights, factors of the Fisher, its diagonal.

    All have the starts as their first dimension. The Fisher is the exact one, of a mean example.
    """

    share: float
    weights: Matrices
    inputs: Matrices
    slopes: Matrices
    diagonal: Matrices


def entering(x: Tensor, weights: Matrices) -> tuple[Tensor, Tensor]:
    """Return what enters the layers, a one appended: (N, in + 1) and (…, N, units + 1)."""
    first = torch.cat([x, torch.ones(len(x), 1).to(x)], 1)
    hidden = (first @ weights[0].mT).clamp_min(0)
    return first, torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1)


def probabilities(x: Tensor, weights: Matrices) -> Tensor:
    """Return the network's probabilities (…, N, classes)."""
    return (entering(x, weights)[1] @ weights[1].mT).softmax(-1)


def client_of(share: float, x: Tensor, weights: Matrices) -> Client:
    """Return a client with the Fisher of its examples at its weights (S, out, in + 1)."""
    first, second = entering(x, weights)
    p = probabilities(x, weights)
    roots = torch.diag_embed(p.sqrt()) - p.sqrt()[..., :, None] * p[..., None, :]
    below = roots @ weights[1][:, None, :, :-1] * (second[..., None, :-1] > 0)
    n, each = len(x), [first.expand(len(p), -1, -1), second]
    return Client(
        share,
        weights,
        [e.mT @ e / n for e in each],
        [(r.flatten(1, 2).mT @ r.flatten(1, 2)) / n for r in (below, roots)],
        [r.square().sum(2).mT @ e.square() / n
         for r, e in zip((below, roots), each, strict=True)],
    )  # fmt: skip


def mean(clients: Sequence[Client]) -> Matrices:
    """Return FedAvg's weights."""
    return [sum(c.share * c.weights[i] for c in clients) for i in range(2)]


def by_precision(clients: Sequence[Client], prior: float) -> Matrices:
    """Return the mean by the Fisher's diagonals, to which a prior is added: RKLB's."""
    found = []
    for i in range(2):
        each = [c.share * (c.diagonal[i] + prior) for c in clients]
        found.append(sum(p * c.weights[i] for p, c in zip(each, clients, strict=True)) / sum(each))
    return found


def product_of(clients: Sequence[Client], damping: float) -> Matrices:
    """Return the mode of the Kronecker products: FedLPA's weights."""
    found = []
    for i in range(2):
        modes = []
        for s in range(len(clients[0].weights[i])):
            each = [[m[i][s].double() + damping**0.5 * torch.eye(len(m[i][s])).double() for m in
                     (c.inputs, c.slopes)] for c in clients]  # fmt: skip
            means, shares = [c.weights[i][s].double() for c in clients], [c.share for c in clients]
            modes.append(product_mode(means, each, shares)[0])
        found.append(torch.stack(modes).float())
    return found


def descents(
    clients: Sequence[Client], kind: str, examples: int, lr: float, steps: Sequence[int]
) -> Iterator[tuple[int, Matrices]]:
    """Yield weights after some of Adam's steps from each start's mean.

    `diagonal` and `kronecker` descend Σ_k w_k Δᵀ F_k Δ, as FedFisher does. `mixture` descends the
    energy of FedBEns, −Σ_k log Σ_s exp(−½ n_k Δ_sᵀ F_ks Δ_s): a client has a mode for each start.
    """
    found = [w.clone().requires_grad_() for w in mean(clients)]
    adam = torch.optim.Adam(found, lr)
    for step in range(1, max(steps) + 1):
        energy = 0.0
        for c in clients:
            total = 0.0
            for i, w in enumerate(found):
                away = w - c.weights[i] if kind != "mixture" else w[:, None] - c.weights[i]
                if kind == "diagonal":
                    total = total + (c.diagonal[i] * away.square()).flatten(-2).sum(-1)
                else:
                    total = total + (c.slopes[i] @ away @ c.inputs[i] * away).flatten(-2).sum(-1)
            if kind == "mixture":
                total = -torch.logsumexp(-0.5 * examples * c.share * total, -1) / examples
            energy = energy + (total if kind == "mixture" else c.share * total)
        adam.zero_grad()
        energy.sum().backward()
        adam.step()
        if step in steps:
            yield step, [w.detach() for w in found]


RULES = {"mean by precision": ("prior", by_precision), "FedLPA": ("damping", product_of)}
ENERGIES = {"FedFisher, diagonal": "diagonal", "FedFisher, Kronecker": "kronecker",
            "FedBEns, 3 starts": "mixture"}  # fmt: skip


class Nets(Table):
    """Networks that the server makes of one round."""

    def measure(self) -> None:
        """Score every setting at the choice's seeds, then each side's best at fresh ones."""
        for stage in ("choice", "fresh"):
            for seed, epochs in product(self.plan[stage], self.plan["local_epochs"]):
                if not self.has({"stage": stage, "seed": seed, "epochs": epochs}):
                    self.of_epochs(stage, seed, epochs)

    def of_epochs(self, stage: str, seed: int, epochs: int) -> None:
        """Score the sides that have so many local epochs."""
        words = {**self.plan["settings"], "seed": seed, "local_epochs": epochs}
        federation = Federation(resolve({**words, "data_dir": self.data_dir}))
        best = {} if stage == "choice" else {side: self.best(side) for side in self.plan["sides"]}
        best = {side: own for side, own in best.items() if own["epochs"] == epochs}
        rates = {own["lr"] for own in best.values()}
        count = self.plan["starts"]
        for lr in self.plan["lr"] if stage == "choice" else sorted(rates):
            runs = started(federation, [Member(lr, 0.9, "constant", 0.0, "FedAvg")] * count,
                           self.plan["pooled"], seed)  # fmt: skip
            clients, data = fitted(runs, self.plan["weight_decay"]), data_of(runs)
            for side in self.plan["sides"] if stage == "choice" else best:
                if best and best[side]["lr"] != lr:
                    continue
                for own, weights in self.found(side, clients, runs.examples):
                    setting = {"lr": lr, "epochs": epochs, **own}
                    if not best or best[side] == setting:
                        place = {"stage": stage, "seed": seed, "epochs": epochs, "side": side}
                        found = scores(predicted(weights), data, stage == "fresh")[1]
                        self.add({**place, "setting": str(setting)}, found)

    def found(
        self, side: str, clients: Sequence[Client], examples: int
    ) -> Iterator[tuple[dict[str, Any], Matrices]]:
        """Yield a side's own settings and its networks' weights."""
        several = clients
        if "starts" not in side:
            several = [Client(c.share, *([m[:1] for m in e] for e in c[1:])) for c in clients]
        if side.startswith("FedAvg"):
            yield {}, mean(several)
        elif side in RULES:
            name, rule = RULES[side]
            for value in self.plan[name]:
                yield {name: value}, rule(several, value)
        else:
            by = examples, self.plan["server_lr"], self.plan["steps"][side]
            for steps, weights in descents(several, ENERGIES[side], *by):
                yield {"steps": steps}, weights


def started(
    federation: Federation, members: Sequence[Member], pooled: int, seed: int
) -> SideBySide:
    """Return federations that differ in their first weights, which are drawn as PyTorch does."""
    runs, drawn = SideBySide(federation, members, pooled), torch.Generator().manual_seed(seed)
    for i, w in enumerate(runs.weights):
        bound = (runs.weights[0].shape[0] if i < 2 else runs.weights[2].shape[1]) ** -0.5
        runs.weights[i] = (2 * torch.rand(w.shape, generator=drawn) - 1) * bound
    return runs


def fitted(runs: SideBySide, weight_decay: float) -> list[Client]:
    """Return the clients after their training."""
    runs.federation.round = 1
    nothing = [torch.zeros_like(w) for w in runs.weights]
    decay, found = torch.full((len(runs.members),), weight_decay), []
    for k, (x, y) in enumerate(runs.data):
        seed = runs.federation.task.seed("train", k, 1)
        hidden, bias, output, last = runs._fit(x, y, seed, decay, nothing)[0]
        layers = (hidden.permute(1, 2, 0), bias), (output.mT, last)
        weights = [torch.cat([w, b[..., None]], 2) for w, b in layers]
        found.append(client_of(len(y) / runs.examples, x, weights))
    return found


def data_of(runs: SideBySide) -> Data:
    """Return the images that score."""
    shards = runs.federation.shards
    held = [torch.cat([getattr(s, f"{n}_held_out") for s in shards]) for n in "xy"]
    test = runs.federation.task.scored_by_clients({})
    return Data([], *((runs.inputs(x), y) for x, y in (held, test)))


def predicted(weights: Matrices) -> Head:
    """Return the log-probabilities of the mean of networks' predictions."""
    return lambda x: probabilities(x, weights).mean(0).clamp_min(1e-30).log()


if __name__ == "__main__":
    torch.set_num_threads(1)
    given, folder, where = sys.argv[1:4]
    Nets(read_yaml(Path(given)), Path(folder) / "nets.csv", where).measure()
