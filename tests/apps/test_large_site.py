"""A site of 1,317 examples beside three of 40: it goes far, and is honest."""

from functools import cache

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

from fedbary.inference import Training
from fedbary.variational import variational
from server_app.engine.inline import InlineGrid
from strategies import Client, strategy_for

SIZES = (1317, 40, 40, 40)
ROUNDS, BAD = 8, 4
TRAINING = Training(epochs=5, batch_size=32, lr=0.05, kl_weight=0.001)
X, Y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float() / 16
PARTS = torch.arange(sum(SIZES)).split(SIZES)
TEST = slice(sum(SIZES), None)
FAIL = {"three": (1, 2, 3), "two, while one is away": (1, 2), "nobody": (), "everybody": range(4)}


def network():
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return variational(whole, last=1)


@cache
def accuracy(method, failing):
    """Accuracy of a run in whose round `BAD` some clients raise an error, and its strategy."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        k, number = context.node_config["partition-id"], message.content["config"]["server-round"]
        if number == BAD and k in FAIL[failing]:
            raise OSError("no space left on device")
        client = Client(network(), X[PARTS[k]], Y[PARTS[k]], TRAINING)
        return client.answer(message, context)

    def there(server_round):
        away = server_round == BAD and failing.startswith("two")
        return [2 + k for k in range(len(SIZES)) if not (away and k == 3)]

    chosen = strategy_for(method)(fraction_evaluate=0.0, choose_nodes=there)
    start = ArrayRecord(network().state_dict())
    arrays = chosen.start(InlineGrid(app, len(SIZES), {}), start, num_rounds=ROUNDS).arrays
    probs = chosen.predict(network(), arrays, X[TEST]).probs
    return float((probs.argmax(1) == Y[TEST]).float().mean()), chosen


@pytest.mark.slow
@pytest.mark.parametrize("method", ["RKLB", "PVI"])
@pytest.mark.parametrize("failing", [failing for failing in FAIL if failing != "nobody"])
def test_it_is_never_refused_and_the_accuracy_stays(method, failing):
    undisturbed, _ = accuracy(method, "nobody")
    found, chosen = accuracy(method, failing)
    assert undisturbed > 0.9 and found > undisturbed - 0.02
    assert {refusal.node_id - 2 for refusal in chosen.refusals} == {*FAIL[failing]}
    assert {refusal.round for refusal in chosen.refusals} == {BAD}
    assert chosen.counted == ROUNDS - (failing == "everybody")
    assert 2 in chosen.contributors
