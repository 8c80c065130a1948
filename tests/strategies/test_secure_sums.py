"""Heads by sums where the server sees one sum: Flower's FedAvg, and masks that cancel in it."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from strategies_clients import CLIENTS, masking_mod
from sums_of import WIDTH, examples, network, replies, state

from fedbary.inference import Training
from fedbary.methods import METHODS, Server
from server_app.engine.inline import InlineGrid
from strategies import Client

X, Y = examples(9, 300)
PARTS = [part.tolist() for part in Y.argsort().chunk(CLIENTS)]


def grid():
    app = ClientApp(mods=[masking_mod])

    @app.train()
    def train(message, context):
        part = PARTS[context.node_config["partition-id"]]
        client = Client(network().double(), X[part].double(), Y[part], Training())
        return client.answer(message, context)

    return InlineGrid(app, CLIENTS, {})


class Curious(FedAvg):
    """Flower's own, with an eye on each reply."""

    def aggregate_train(self, server_round, messages):
        self.seen = [message.content["arrays"].to_torch_state_dict() for message in messages]
        return super().aggregate_train(server_round, messages)


@pytest.mark.parametrize("name", ["LDA", "Ridge"])
def test_a_server_that_sees_only_masked_sums_finds_the_model_of_all_data(name):
    method, start = METHODS[name](), network().double()
    server = Curious(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    asked = ConfigRecord({"method": name})
    result = server.start(grid(), ArrayRecord(start.state_dict()), num_rounds=1, train_config=asked)
    means = result.arrays.to_torch_state_dict()
    found = method.model_of_total(start.state_dict(), len(X), means)
    plain, _ = method.aggregate(
        Server(state(network()), {}), replies(method, X, Y, [torch.arange(len(X))])
    )
    for key, tensor in plain.items():
        torch.testing.assert_close(found[key].float(), tensor, rtol=1e-3, atol=1e-3)
    for reply, part in zip(server.seen, PARTS, strict=True):
        with pytest.raises(ValueError, match="no examples|shares|whole"):
            method.model_of_total(start.state_dict(), len(part), reply)


def test_a_total_that_no_examples_have_is_refused():
    method = METHODS["LDA"]()
    (sound,) = replies(method, X, Y, [torch.arange(len(X))])
    forged = {key: -tensor for key, tensor in sound.tensors.items()}
    with pytest.raises(ValueError, match="shares"):
        method.model_of_total(state(network()), len(X), forged)
    assert sound.tensors["sums/features"].numel() == 3 * WIDTH
