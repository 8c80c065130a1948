"""Federated uncertainty for a CNN of one's own: its data, a client and the server."""

import torch
from fedbary.strategies import Client, strategy_for
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

from fedbary.inference import Training
from fedbary.scores.metrics import accuracy_after_rejection, evaluate
from fedbary.variational import variational

client = ClientApp()
server = ServerApp()
TRAINING = Training(epochs=5, batch_size=32, lr=0.05, kl_weight=0.01)


def network(gaussian_layers):
    cnn = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
    return variational(cnn, last=gaussian_layers, init_log_var=-5.0)


def digits(rows):
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x[rows] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return images, torch.tensor(y[rows])


@client.train()
@client.evaluate()
def answer(message, context):
    node, net = context.node_config, network(message.content["config"]["gaussian-layers"])
    x, y = digits(slice(node["partition-id"], 1200, node["num-partitions"]))
    held_out = x[:40], y[:40]
    return Client(net, x[40:], y[40:], TRAINING, held_out=held_out).answer(message, context)


@server.main()
def main(grid, context):
    x, y = digits(slice(1200, None))
    for rule, gaussian_layers in {"RKLB": 1, "FedAvg": 0}.items():
        torch.manual_seed(context.run_config["seed"])
        net, strategy = network(gaussian_layers), strategy_for(rule)()
        said = ConfigRecord({"gaussian-layers": gaussian_layers})
        result = strategy.start(
            grid, ArrayRecord(net.state_dict()), context.run_config["rounds"],
            train_config=said, evaluate_config=said,
        )  # fmt: skip
        prediction = strategy.predict(net, result.arrays, x, samples=50)
        scores = evaluate(prediction.probs, y)
        (surest,) = accuracy_after_rejection(prediction.probs, y, prediction.entropy, [0.2])
        print(
            f"{rule:6} {scores['accuracy']:.2%} right, NLL {scores['nll']:.3f} nats, "
            f"ECE {scores['ece']:.2%}, {surest:.2%} right of the surest four fifths"
        )
