"""Time what published methods and curvature add to a client's epochs, and FedPA to a round.

PVI, FedEP, BayesADMM and pFedBayes: a client's work of a round over that of plain variational
inference on the same examples (target: at most 1.1 per posterior trained; pFedBayes trains two, the
client's own and its copy of the global one, and is held to 1.1 of a single one all the same).
`inference=curvature`: a client's work of a round over FedAvg's (target: at most 1.25). FedPA: what
clients and server do beyond FedAvg's, over a round of FedAvg's (target: below 5 %). The papers'
CNN, 28 × 28 images, batch 64. Sides alternate within one run; times are the process's CPU seconds
on one thread, which other programs disturb less; medians of the ratios are printed.

    python benchmarks/methods.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedbary.inference import Training, local_method, prepare
from fedbary.methods import Fitted, Local, Method, Reply, Server, Tensors, method_named
from fedbary.models import build

SHAPE, CLASSES, CLIENTS = (1, 28, 28), 10, 10
SITES = ("PVI", "FedEP", "BayesADMM", "pFedBayes")


class Side:
    """A method with a client that has taken part before.

    Parameters
    ----------
    method
        The method.
    network
        The client's.
    x, y
        The client's examples.
    epochs
        Of a round.
    inference
        Its local inference.
    """

    def __init__(
        self, method: Method, network: nn.Module, x: Tensor, y: Tensor, epochs: int,
        inference: str = "variational",
    ) -> None:  # fmt: skip
        self.method = method
        prepare(inference, network)
        self.local = Local(
            network, x, y, nn.functional.cross_entropy, local_method(inference),
            Training(epochs, batch_size=64, lr=0.01), prior=1.0, round=2, seed=0,
        )  # fmt: skip
        model = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        self.server = Server(model, method.start(model))
        self.fitted = self.fit()
        if type(method) is not Method:
            self.server = Server(*self.aggregate())

    def fit(self) -> Fitted:
        """Do the client's work of a round."""
        sent: Tensors = self.method.send(self.server, "0")
        return self.method.fit(self.local, sent, {})

    def aggregate(self) -> tuple[Tensors, Tensors]:
        """Do the server's, of replies of all clients."""
        weight = float(len(self.local.x))
        replies = [Reply(str(k), weight, self.fitted.reply) for k in range(CLIENTS)]
        return self.method.aggregate(self.server, replies)


def cnn(bayesian_layers: int) -> nn.Module:
    """Return the papers' CNN."""
    return build("cnn", SHAPE, CLASSES, 0, bayesian_layers, init_log_var=-5.0)


def seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=640, help="of a client")
    parser.add_argument("--epochs", type=int, default=5, help="of a round")
    parser.add_argument("--repeats", type=int, default=9, help="alternations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randint(0, 256, (args.examples, *SHAPE), dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (len(x),))
    plain = Side(Method(), cnn(3), x, y, args.epochs)
    sites = {name: Side(method_named(name)(), cnn(3), x, y, args.epochs) for name in SITES}
    average = Side(method_named("barycentre")(rule="FedAvg"), cnn(0), x, y, args.epochs)
    sampled = Side(method_named("FedPA")(), cnn(0), x, y, args.epochs)
    curved = {n: Side(Method(), cnn(n), x, y, args.epochs, "curvature") for n in (3, 5)}
    ratios: dict[str, list[float]] = {name: [] for name in SITES}
    added: list[tuple[float, float]] = []
    for _ in range(args.repeats):
        for name, side in sites.items():
            ratios[name].append(seconds(side.fit) / seconds(plain.fit))
        client, server = seconds(average.fit), seconds(average.aggregate)
        for n, side in curved.items():
            ratios.setdefault(f"curvature of {n} layers", []).append(seconds(side.fit) / client)
        a_round = CLIENTS * client + server
        beyond = CLIENTS * (seconds(sampled.fit) - client)
        added.append((beyond / a_round, (seconds(sampled.aggregate) - server) / a_round))
    for name, values in ratios.items():
        against = "plain VI (target at most 1.1)" if name in SITES else "FedAvg (at most 1.25)"
        print(f"{name}: {statistics.median(values):.3f} × {against}")
    parts = [100 * statistics.median(part) for part in zip(*added, strict=True)]
    print(
        f"FedPA adds {sum(parts):.1f} % to a round of {CLIENTS} clients (target below 5 %): "
        f"clients {parts[0]:.1f} %, server {parts[1]:.2f} %"
    )


if __name__ == "__main__":
    main()
