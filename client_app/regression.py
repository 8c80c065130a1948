"""Regression at a client: sums for the standardisation, a fit, and sums for the noise."""

from __future__ import annotations

import time

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from client_app.node import Node, config_of, round_of
from fedbary.methods import Fitted
from fedbary.regression.federation import Columns, make_model, seed_of, site_data
from fedbary.regression.networks import gaussian_nll
from fedbary.regression.noise import noise_sums
from fedbary.regression.sgd import fit
from fedbary.regression.standardise import Standardiser
from fedbary.standardise import Sums
from strategies.client import reply_of


def query(message: Message, node: Node) -> Message:
    """Say which data this node holds, and how much it trains on."""
    _, y = site_data(node.settings, node.site, _task(message))
    site = node.site
    reply = MetricRecord(
        {
            "partition-id": -1 if site.partition is None else site.partition,
            "num-partitions": site.partitions,
            "num-examples": len(y),
            "label-counts": [],
        }
    )
    named = ConfigRecord({"name": site.name})
    return Message(RecordDict({"metrics": reply, "site": named}), reply_to=message)


def sums(message: Message, node: Node) -> Message:
    """Sum up each column, features and target, less the shift that the server names."""
    x, y = site_data(node.settings, node.site, _task(message))
    shift = torch.tensor(config_of(message)["shift"], dtype=torch.float64)
    held = Sums.of(torch.cat([x, y[:, None]], 1), shift)
    total, squares = held.total.tolist(), held.squares.tolist()
    metrics = MetricRecord({"count": held.count, "total": total, "squares": squares})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def train(message: Message, node: Node) -> Message:
    """Fit the global model to the site's data: FedAG's point weights, or a local posterior."""
    settings, server_round = node.settings, round_of(message)
    x, y = _standardised(message, node)
    model = make_model(settings, _task(message))
    seed = seed_of(settings, "train", node.site.key, server_round)
    start = time.perf_counter()
    if settings.rule == "FedAG":
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        lr, epochs = settings.lr_of(server_round), settings.local_epochs
        metrics = fit(model, x, y, epochs, settings.batch_size, lr, seed)
        fitted = Fitted(model.state_dict(), metrics)
    else:
        fitted = node.fit(message, model, x, y, gaussian_nll, seed)
    seconds = time.perf_counter() - start
    return reply_of(message, fitted, {"num-examples": len(y), "train-seconds": seconds})


def noise(message: Message, node: Node) -> Message:
    """Sum up what the other clients' networks leave unexplained of the site's data."""
    networks = message.content.array_records["networks"].to_torch_state_dict()
    own = int(config_of(message)["own"])  # type: ignore[arg-type]
    x, y = _standardised(message, node)
    held = noise_sums(networks, x, y, own if own >= 0 else None)
    metrics = {"count": held.count, "squares": held.squares, "spread": held.spread}
    return Message(RecordDict({"metrics": MetricRecord({**metrics})}), reply_to=message)


def _task(message: Message) -> Columns:
    return Columns(tuple(map(str, config_of(message)["features"])))  # type: ignore[arg-type]


def _standardised(message: Message, node: Node) -> tuple[Tensor, Tensor]:
    x, y = site_data(node.settings, node.site, _task(message))
    config = config_of(message)
    mean, std = (torch.tensor(config[key], dtype=torch.float64) for key in ("mean", "std"))
    standardiser = Standardiser(mean, std)
    return standardiser.features(x), standardiser.target(y)
