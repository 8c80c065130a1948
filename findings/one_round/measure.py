"""Rivals of one round on a pretrained network's features: `cells.csv`.

    python -m findings.one_round.measure findings/one_round/plan.yaml findings/one_round DATA_DIR

DATA_DIR holds CIFAR-10, and keeps the features. Cells that the table has are not measured again.
"""

import math
import sys
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedbary.data import deal
from fedbary.methods import METHODS
from fedbary.methods.lda import evidence, pull
from fedbary.predictive import mixture
from fedbary.scores.metrics import fitted_temperature, nll_at_temperatures
from fedbary.settings.config import read_yaml, resolve
from fedbary.tasks import task_of
from fedbary.tasks._images import backbone_of, kept_features, load_dataset, of_shard

Examples = tuple[Tensor, Tensor]
Head = Callable[[Tensor], Tensor]
CLASSES = 10
SETTING = ("weight_decay", "lr", "local_epochs")


class Data(NamedTuple):
    """Standardised features and labels: of each client, held out by all, and of the test."""

    clients: list[Examples]
    held_out: Examples
    test: Examples

    @property
    def pooled(self) -> Examples:
        """The examples of all clients."""
        x, y = zip(*self.clients, strict=True)
        return torch.cat(x), torch.cat(y)


def data_of(words: Mapping[str, Any], tested: bool) -> Data:
    """Return the data that a run with these settings has; test data only where it is tested."""
    settings = resolve(words)
    task, backbone, folder = task_of(settings), backbone_of(settings), settings.data_dir
    assert backbone is not None
    shards = [of_shard(deal.client_shard(task.held, task.deal, settings.clients, k), backbone,
                       folder) for k in range(settings.clients)]  # fmt: skip
    held_out = [torch.cat([getattr(s, f"{n}_held_out") for s in shards]) for n in "xy"]
    test = held_out
    if tested:
        images = load_dataset(settings)
        test = [kept_features(images.x_test, backbone, folder), images.y_test]
    every = torch.cat([s.x for s in shards]).double()
    mean, std = every.mean(0), every.std(0, correction=0).clamp_min(1e-6)
    clients = [(s.x, s.y) for s in shards]
    scaled = [(((x.double() - mean) / std).float(), y) for x, y in [*clients, held_out, test]]
    return Data(scaled[:-2], scaled[-2], scaled[-1])


def scores(head: Head, data: Data, tested: bool) -> tuple[float, dict[str, float]]:
    """Return T and the NLL at T on held-out examples; if tested, NLL and accuracy on the test."""
    y = data.held_out[1]
    logits = head(data.held_out[0])
    by_temperature = nll_at_temperatures(mixture(logits[None]), y)
    t = fitted_temperature([{**by_temperature, "num-examples": len(y)}]) or 1.0
    found = {"temperature": t, "held_out": float(cross_entropy(logits / t, y))}
    if tested:
        logits, y = head(data.test[0]), data.test[1]
        found["nll"] = float(cross_entropy(logits / t, y))
        found["accuracy"] = float((logits.argmax(1) == y).float().mean())
    return t, found


def by_sums(method: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights and biases that a method makes of features (N, d) of all clients."""
    one = METHODS[method](most_features=x.shape[1])
    sums = one.products(x.double(), y, CLASSES)
    head = one.head(float(len(x)), {name: s / len(x) for name, s in sums.items()}, 1)
    return head.weight.float(), head.bias.float()


def components(data: Data, count: int) -> Tensor:
    """Return the first principal axes (d, count) of all clients' features, to variance 1."""
    x = data.pooled[0].double()
    values, axes = torch.linalg.eigh(x.T @ x / len(x))
    return (axes[:, -count:] / values[-count:].sqrt()).float()


def mapped(data: Data, kind: str, count: int, scale: float) -> Head:
    """Return a map of features that all clients share: random ones, or buckets of components."""
    if kind == "buckets":
        axes, width = components(data, count // 8), 8
        edges = math.sqrt(2) * torch.erfinv(torch.arange(1, width) / width * 2 - 1)
        return lambda x: one_hot(torch.bucketize(x @ axes, edges), width).flatten(1).float()
    drawn, d = Generator().manual_seed(0), data.test[0].shape[1]
    turn = scale * torch.randn(d, count, generator=drawn) / math.sqrt(d)
    if kind == "ReLU":
        shift = torch.randn(count, generator=drawn)
        return lambda x: (x @ turn + shift).clamp_min(0)
    phase = 2 * math.pi * torch.rand(count, generator=drawn)
    return lambda x: math.sqrt(2 / count) * torch.cos(x @ turn + phase)


def heads(data: Data, method: str, map: Sequence[Any] = ()) -> Head:
    """Return the head by sums on features, or on a map of them."""
    of = mapped(data, *map) if map else lambda x: x
    x, y = data.pooled
    found = of(x)
    mean, std = found.mean(0), found.std(0).clamp_min(1e-6)
    weight, bias = by_sums(method, (found - mean) / std, y)
    return lambda x: (of(x) - mean) / std @ weight.T + bias


def qda(data: Data, count: int = 0, strength: float = 0.0) -> Head:
    """Return discriminants with a covariance for each class.

    Σ_c ~ inverse Wishart with LDA's covariance Σ as its mean, worth `strength` examples for each
    component; 0: as many as have the largest evidence.
    """
    axes = components(data, count).double() if count else torch.eye(data.test[0].shape[1]).double()
    (x, y), d = data.pooled, axes.shape[1]
    by_class = [x[y == c].double() @ axes for c in range(CLASSES)]
    means = torch.stack([z.mean(0) for z in by_class])
    spreads = [(z - m).T @ (z - m) for z, m in zip(by_class, means, strict=True)]
    counts, total = torch.tensor([len(z) for z in by_class]).double(), sum(spreads)
    _, held = evidence(total, counts, pull(counts, means - x.double().mean(0) @ axes, total))
    prior = held * float(total.trace()) / (len(x) * d) * torch.eye(d)
    root = torch.linalg.cholesky((total + prior) / (len(x) + held))

    def white(rows: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(root, rows.T, upper=False).T

    inside = [white(white(s).T) for s in spreads]
    if not strength:
        strengths = [10 ** (k / 4) for k in range(-6, 13)]
        values = [torch.linalg.eigvalsh(s).clamp_min(0) for s in inside]
        strength = max(strengths, key=lambda s: _evidence(d * s, values, counts))
    n = d * strength
    roots = [torch.linalg.cholesky((s + n * torch.eye(d)) / (k + n))
             for s, k in zip(inside, counts, strict=True)]  # fmt: skip

    def head(x: Tensor) -> Tensor:
        away = (white((x.double() @ axes) - m) for m in means)
        held = [
            k.log() - r.diagonal().log().sum()
            - torch.linalg.solve_triangular(r, z.T, upper=False).square().sum(0) / 2
            for z, r, k in zip(away, roots, counts, strict=True)
        ]  # fmt: skip
        return torch.stack(held, 1).float()

    return head


def _evidence(strength: float, values: Sequence[Tensor], counts: Tensor) -> float:
    """Return log p of the classes' scatters, of these eigenvalues beside Σ, up to a constant."""
    d = len(values[0])
    before, after = strength + d + 1, strength + d + 1 + counts
    found = (torch.special.multigammaln(after / 2, d)).sum()
    found -= len(counts) * torch.special.multigammaln(torch.tensor(before / 2).double(), d)
    found += len(counts) * before / 2 * d * math.log(strength)
    for own, n in zip(values, after, strict=True):
        found -= n / 2 * (strength + own).log().sum()
    return float(found)


def linear(weights: Tensor) -> Head:
    """Return the head of weights (d + 1, C), the bias as the last row."""
    return lambda x: x @ weights[:-1] + weights[-1]


class Member(NamedTuple):
    """A federation's start, its weight decay, and its step size in the first round."""

    start: str
    weight_decay: float
    lr: float


def descended(
    data: Data, starts: Mapping[str, Tensor], members: Sequence[Member], method: str, rounds: int,
    epochs: int, batch_size: int, seed: int,
) -> Tensor:  # fmt: skip
    """Return the heads (M, d + 1, C) of federations side by side, the bias as the last row.

    Rounds are those of FedAvg with momentum 0.9, or of SCAFFOLD with none. The step size falls by a
    cosine if there are several. Gradients have a norm of 5 at most, as in runs.
    """
    weights = torch.stack([starts[member.start] for member in members])
    decay, lr = (torch.tensor([getattr(m, name) for m in members]).view(-1, 1, 1)
                 for name in ("weight_decay", "lr"))  # fmt: skip
    clients = [(torch.cat([x, torch.ones(len(x), 1)], 1), one_hot(y, CLASSES).float())
               for x, y in data.clients]  # fmt: skip
    shares = [len(x) / sum(len(x) for x, _ in clients) for x, _ in clients]
    controls = [torch.zeros_like(weights) for _ in clients]
    momentum = 0.0 if method == "SCAFFOLD" else 0.9
    for at in range(rounds):
        rate = -lr * (0.5 * (1 + math.cos(math.pi * at / rounds)))
        common = sum(s * c for s, c in zip(shares, controls, strict=True))
        following = torch.zeros_like(weights)
        for k, (x, y) in enumerate(clients):
            order = Generator().manual_seed(hash((seed, at, k)))
            own, velocity = weights.clone(), torch.zeros_like(weights)
            total, steps = torch.zeros_like(weights), 0
            for _ in range(epochs):
                for rows in torch.randperm(len(x), generator=order).split(batch_size):
                    logits = (x[rows] @ own.transpose(0, 1).flatten(1)).view(len(rows), -1, CLASSES)
                    slopes = (logits.softmax(2) - y[rows, None]) / len(rows)
                    gradient = (x[rows].T @ slopes.flatten(1)).view(-1, *slopes.shape[1:])
                    gradient = gradient.transpose(0, 1)
                    if method == "SCAFFOLD":
                        total += gradient
                        steps += 1
                        gradient = gradient + (common - controls[k])
                    norms = gradient.flatten(1).norm(dim=1).view(-1, 1, 1)
                    gradient = gradient * (5 / norms.clamp_min(5)) + decay * own
                    velocity.mul_(momentum).add_(gradient)
                    own.addcmul_(rate, velocity)
            if method == "SCAFFOLD":
                controls[k] = total / steps
            following += shares[k] * own
        weights = following
    return weights


class Table:
    """A plan, and the table of what is measured.

    Parameters
    ----------
    plan, file, data_dir
        The plan's content, the table, and the folder of the data set.
    """

    def __init__(self, plan: dict[str, Any], file: Path, data_dir: str) -> None:
        self.plan, self.file, self.data_dir = plan, file, data_dir
        self.cells = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["stage"])

    def best(self, side: str) -> dict[str, Any]:
        """Return the setting of a side with the least mean NLL on held-out examples."""
        tried = self.cells[(self.cells["stage"] == "choice") & (self.cells["side"] == side)]
        return dict(literal_eval(tried.groupby("setting")["held_out"].mean().idxmin()))

    def has(self, place: Mapping[str, object]) -> bool:
        """Whether the table has a place's cell."""
        held = self.cells
        for name, value in place.items():
            held = held[held[name] == value] if name in held else held[:0]
        return bool(len(held))

    def add(self, place: Mapping[str, object], found: Mapping[str, float]) -> None:
        """Write a cell."""
        self.cells = pd.concat([self.cells, pd.DataFrame([{**place, **found}])], ignore_index=True)
        self.cells.round(5).to_csv(self.file, index=False)
        print(*place.values(), *(round(value, 4) for value in found.values()), flush=True)


class Heads(Table):
    """Heads by sums, and what FedAvg and SCAFFOLD make of some starts."""

    def measure(self) -> None:
        """Score every setting at the choice's seeds, then each side's best at fresh ones."""
        for stage in ("choice", "fresh"):
            words = {**self.plan["settings"], "data_dir": self.data_dir}
            data = {seed: data_of({**words, "seed": seed}, stage == "fresh")
                    for seed in self.plan[stage]}  # fmt: skip
            for seed, own in data.items():
                self.of_starts(stage, seed, own)
            for seed in self.plan["choice_of_sums"] if stage == "choice" else data:
                self.of_sums(stage, seed, data[seed])

    def of_sums(self, stage: str, seed: int, data: Data) -> None:
        """Score the heads of one round."""
        for side, settings in self.plan["sums"].items():
            tested = [self.best(side)] if side in self.plan["tested"] else []
            for own in settings if stage == "choice" else tested:
                place = {"stage": stage, "seed": seed, "side": side, "setting": str(own)}
                if not self.has(place):
                    head = qda(data, **own) if side == "QDA" else heads(data, **own)
                    self.add(place, scores(head, data, stage == "fresh")[1])

    def of_starts(self, stage: str, seed: int, data: Data) -> None:
        """Score what FedAvg and SCAFFOLD make of each start."""
        starts = {"zeros": torch.zeros(data.test[0].shape[1] + 1, CLASSES)}
        for name, method in (("LDA/T", "LDA"), ("Ridge", "Ridge")):
            weight, bias = by_sums(method, *data.pooled)
            starts[name] = torch.cat([weight.T, bias[None]])
        starts["LDA/T"] /= scores(linear(starts["LDA/T"]), data, False)[0]
        for own in self.plan["trained"]:
            by_epochs: dict[int, dict[Member, dict[str, Any]]] = {}
            for start in starts:
                side = f"{own['method']} {own['rounds']} from {start}"
                tried = product(self.plan["weight_decay"], own["lr"], own["local_epochs"])
                settings = [dict(zip(SETTING, each, strict=True)) for each in tried]
                for each in settings if stage == "choice" else [self.best(side)]:
                    place = {"stage": stage, "seed": seed, "side": side, "setting": str(each)}
                    if not self.has(place):
                        member = Member(start, each["weight_decay"], each["lr"])
                        by_epochs.setdefault(each["local_epochs"], {})[member] = place
            for epochs, places in by_epochs.items():
                by = own["method"], own["rounds"], epochs, own["batch_size"], seed
                found = descended(data, starts, [*places], *by)
                for place, weights in zip(places.values(), found, strict=True):
                    self.add(place, scores(linear(weights), data, stage == "fresh")[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    given, folder, where = sys.argv[1:4]
    Heads(read_yaml(Path(given)), Path(folder) / "cells.csv", where).measure()
