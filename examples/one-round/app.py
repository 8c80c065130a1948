"""Three hospitals with features of their own: one round of sums, beside rounds of FedAvg."""

import torch
from fedbary.strategies import LDA, Client, strategy_for
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_breast_cancer
from torch import nn

from fedbary.inference import Training
from fedbary.scores.metrics import evaluate

client = ClientApp()
server = ServerApp()
TRAINING = Training(epochs=1, batch_size=16, lr=0.1, weight_decay=1e-3)
MALIGNANT = (0.1, 0.3, 0.6)  # the part of the malignant tumours that each hospital sees
ROUNDS = (1, 5, 20)


def tumours():
    """Features of 569 tumours in units of 150 reference ones: references, then the others."""
    x, y = (torch.tensor(part) for part in load_breast_cancer(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order].log1p().float(), 1 - y[order]
    x = (x - x[:150].mean(0)) / x[:150].std(0)
    return (x[:150], y[:150]), (x[150:], y[150:])


def of_hospital(number):
    """Return what one hospital holds: a few of the malignant tumours, or most of them."""
    x, y = tumours()[1]
    held = []
    for label, parts in ((1, MALIGNANT), (0, MALIGNANT[::-1])):
        rows = (y == label).nonzero().flatten()
        ends = [round(sum(parts[:end]) * len(rows)) for end in range(len(parts) + 1)]
        held.append(rows[ends[number] : ends[number + 1]])
    return x[torch.cat(held)], y[torch.cat(held)]


@client.train()
@client.evaluate()
def answer(message, context):
    x, y = of_hospital(context.node_config["partition-id"] % len(MALIGNANT))
    return Client(nn.Linear(30, 2), x, y, TRAINING, held_out=(x, y)).answer(message, context)


@server.main()
def main(grid, context):
    (x, y), _ = tumours()
    runs = [("LDA", LDA, 1), *(("FedAvg", strategy_for("FedAvg"), rounds) for rounds in ROUNDS)]
    for name, kind, rounds in runs:
        torch.manual_seed(context.run_config["seed"])
        net, strategy = nn.Linear(30, 2), kind()
        result = strategy.start(grid, ArrayRecord(net.state_dict()), rounds)
        found = evaluate(strategy.predict(net, result.arrays, x).probs, y)
        print(
            f"{name:6} after {rounds:2} rounds: NLL {found['nll']:.3f} nats, "
            f"{100 * found['accuracy']:.1f} % of 150 right"
        )
