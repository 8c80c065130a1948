"""Heads by sums where the server sees one sum: Flower's FedAvg, and masks that cancel in it."""

import secrets

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.server import LegacyContext, SimpleClientManager
from flwr.server import strategy as old
from flwr.server.client_proxy import ClientProxy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg
from small_apps import answering
from strategies_clients import CLIENTS, Curious, masking_mod
from sums_of import WIDTH, examples, network, replies, state

from fedbary.inference import Training
from fedbary.methods import METHODS, Server
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import Client, FitMessages

X, Y = examples(9, 300)
PARTS = [part.tolist() for part in Y.argsort().chunk(CLIENTS)]


def grid(*mods):
    def client(k):
        return Client(network().double(), X[PARTS[k]].double(), Y[PARTS[k]], Training())

    return InlineGrid(answering(client, mods=mods), CLIENTS, {})


@pytest.mark.parametrize("name", ["LDA", "Ridge"])
def test_a_server_that_sees_only_masked_sums_finds_the_model_of_all_data(name):
    method, start = METHODS[name](), network().double()
    server = Curious(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    asked = ConfigRecord({"method": name})
    result = server.start(
        grid(masking_mod), ArrayRecord(start.state_dict()), num_rounds=1, train_config=asked
    )
    means = result.arrays.to_torch_state_dict()
    found = method.model_of_total(start.state_dict(), len(X), means)
    plain, _ = method.aggregate(
        Server(state(network()), {}), replies(method, X, Y, [torch.arange(len(X))])
    )
    for key, tensor in plain.items():
        torch.testing.assert_close(found[key].float(), tensor, rtol=1e-3, atol=1e-3)
    for reply, part in zip(server.seen, PARTS, strict=True):
        with pytest.raises(ValueError, match="no examples|shares|whole"):
            method.model_of_total(start.state_dict(), len(part), reply.to_torch_state_dict())


def test_a_total_that_no_examples_have_is_refused():
    method = METHODS["LDA"]()
    (sound,) = replies(method, X, Y, [torch.arange(len(X))])
    forged = {key: -tensor for key, tensor in sound.tensors.items()}
    with pytest.raises(ValueError, match="shares"):
        method.model_of_total(state(network()), len(X), forged)
    assert sound.tensors["sums/features"].numel() == 3 * WIDTH


class Proxy(ClientProxy):
    """Stands for a node in Flower's old client manager."""

    def __init__(self, node_id):
        super().__init__(str(node_id))
        self.node_id = node_id

    get_properties = get_parameters = fit = evaluate = reconnect = None


def secure_sum(start, mods, **limits):
    """The arrays after a round of LDA under Flower's SecAgg+, by their place."""
    clients = grid(*mods)
    manager = SimpleClientManager()
    for node_id in clients.get_node_ids():
        manager.register(Proxy(node_id))
    server = old.FedAvg(
        min_fit_clients=CLIENTS,
        min_available_clients=CLIENTS,
        on_fit_config_fn=lambda _: {"method": "LDA"},
        fit_metrics_aggregation_fn=lambda _: {},
    )
    numbered = {str(i): Array(tensor.numpy()) for i, tensor in enumerate(start.values())}
    records = {"config": ConfigRecord({"current_round": 1}), "parameters": ArrayRecord(numbered)}
    held = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(records), run_config={})
    context = LegacyContext(held, strategy=server, client_manager=manager)
    SecAggPlusWorkflow(1.0, 0.5, **limits)(clients, context)
    return [array.numpy() for array in context.state["parameters"].values()]


LIMITS = {"max_weight": 300, "clipping_range": 8.0}


def test_a_round_of_sums_is_one_sum_under_flower_s_secagg_plus():
    method, start = METHODS["LDA"](), network().double().state_dict()
    found = secure_sum(start, [secaggplus_mod, FitMessages(list(start))], **LIMITS)
    (whole,) = replies(method, X, Y, [torch.arange(len(X))])
    named = dict(zip(method.reply_like(start), map(torch.from_numpy, found), strict=True))
    for key, tensor in whole.tensors.items():
        torch.testing.assert_close(named[key].float(), tensor, rtol=0, atol=2e-5)
    model = method.model_of_total(start, len(X), named)
    plain, _ = method.aggregate(Server(state(network()), {}), [whole])
    for key, tensor in plain.items():
        torch.testing.assert_close(model[key].float(), tensor, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_sum_that_secagg_plus_would_clip_is_refused(limit):
    start = network().double().state_dict()
    mods = [secaggplus_mod, FitMessages(list(start))]
    after = secure_sum(start, mods, **{**LIMITS, limit: 0.5})
    for array, tensor in zip(after, start.values(), strict=True):
        np.testing.assert_array_equal(array, tensor.numpy())


def test_the_masks_of_secagg_plus_have_32_bits_of_secret():
    """The page on privacy says so; once this fails, Flower has mended it."""
    key = secrets.token_bytes(32)
    words = [key[at : at + 4] for at in range(0, 32, 4)]
    other = b"".join(words[::-1])
    one, same = (pseudo_rand_gen(k, 2**22, [(1000,)])[0] for k in (key, other))
    assert key != other
    np.testing.assert_array_equal(one, same)


def test_flower_s_mod_answers_no_message_of_fedbary_s_own_strategies():
    failed = []

    class Counting(FedAvg):
        def aggregate_train(self, server_round, messages):
            failed.extend(message.has_error() for message in messages)
            return None, None

    server = Counting(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    arrays = ArrayRecord(network().double().state_dict())
    asked = ConfigRecord({"method": "LDA"})
    server.start(grid(secaggplus_mod), arrays, num_rounds=1, train_config=asked)
    assert failed == [True] * CLIENTS
