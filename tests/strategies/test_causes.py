"""What a user of a strategy does wrong in a project of their own ends in a line with its cause."""

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from small_apps import moving
from torch import nn

from fedbary.errors import RunError, SettingError
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.modes import Asynchronous
from fedbary.strategies import FOLA, LDA, PVI, RKLB
from fedbary.variational import variational

CLIENTS = 4


def plain():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def gaussian():
    return variational(plain(), last=1)


def own_loop(network):
    """Clients that load a message's arrays as they are."""
    app = ClientApp()

    def answer(message, context):
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        metrics = MetricRecord({"num-examples": 3})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        if message.metadata.message_type == "evaluate":
            del content["arrays"]
        return Message(RecordDict(content), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    return app


def test_a_rule_s_clients_may_train_in_any_way(caplog):
    caplog.set_level("INFO")
    start(RKLB(), gaussian, rounds=1)
    assert "Clients:" not in caplog.text


def start(strategy, network, rounds=2):
    grid = InlineGrid(own_loop(network), CLIENTS, {})
    return strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds)


@pytest.mark.parametrize("chosen", ["method", "groups"])
def test_a_loop_of_one_s_own_that_cannot_read_a_message_is_led_to_the_client(chosen, caplog):
    strategy, arrays, rounds = RKLB(groups=2), "group/", 2
    if chosen == "method":
        strategy, arrays, rounds = PVI(), "cavity/", 1
        said = "no client can read the messages: for PVI they answer by fedbary.strategies.Client"
        with pytest.raises(RunError, match=f"^{said}; see docs/howto/foreign.md"):
            start(strategy, gaussian)
    else:
        start(strategy, gaussian)
        assert strategy.counted == 2
    assert f"Clients: {strategy._asks_clients()}" in caplog.text.split("Received")[0]
    assert len(strategy.refusals) == rounds * CLIENTS
    for refusal in strategy.refusals:
        assert "its message needs fedbary.strategies.Client" in refusal.reason
        assert arrays in refusal.reason
    asked = "aggregate_train" if chosen == "method" else "aggregate_evaluate"
    assert f"{asked}: Received 0 results and {CLIENTS} failures" in caplog.text


@pytest.mark.parametrize(
    ("strategy", "network", "named"),
    [
        (PVI, plain, "covariance: 'none'; expected diagonal, .* fedbary.variational.variational"),
        (FOLA, gaussian, "method: 'FOLA'; expected .*2.weight_mean.* or for FOLA the network with"),
        (LDA, gaussian, "method: 'LDA'; expected .*2.weight_mean.* or for LDA the network without"),
    ],
)
def test_a_network_of_the_other_kind_is_refused_with_the_way_to_the_right_one(
    strategy, network, named
):
    with pytest.raises(SettingError, match=named):
        start(strategy(), network)


class Registering(InlineGrid):
    """A grid whose nodes register one by one, as those of a simulation do."""

    def get_node_ids(self):
        self.asked = getattr(self, "asked", 1) + 1
        return [*super().get_node_ids()][: self.asked]


def test_more_replies_than_there_are_nodes_are_refused_before_anybody_trains():
    trained = []

    def train(state, k, number):
        trained.append(k)
        return state

    grid = InlineGrid(moving(train), CLIENTS, {})
    arrays = ArrayRecord({"w": torch.zeros(2)})
    with pytest.raises(SettingError, match="min_replies: 10; expected at most 4, the clients"):
        RKLB(min_replies=10).start(grid, arrays)
    with pytest.raises(SettingError, match="min_replies: 3; expected at most 2, the clients"):
        RKLB(min_replies=3, fraction_train=0.5).start(grid, arrays)
    buffered = RKLB(min_replies=2, asynchronous=Asynchronous(concurrency=2))
    with pytest.raises(SettingError, match="min_replies: 2; expected at most 1, the replies"):
        buffered.start(grid, arrays)
    assert trained == []
    later = Registering(moving(train), CLIENTS, {})
    RKLB(min_replies=4, fraction_evaluate=0.0).start(later, arrays, num_rounds=1)
    assert sorted(trained) == [*range(CLIENTS)]
    trained.clear()
    RKLB(min_replies=4, fraction_evaluate=0.0).start(grid, arrays, num_rounds=1)
    assert sorted(trained) == [*range(CLIENTS)]


def test_the_log_says_once_a_start_how_many_arrays_are_gaussian(caplog):
    strategy = RKLB(fraction_evaluate=0.0)
    for _ in range(2):
        start(strategy, gaussian, rounds=3)
    assert caplog.text.count("configure_train: 1 of 5 arrays are Gaussian means") == 2
    assert caplog.text.count("aggregate_train: Received 4 results and 0 failures") == 6
