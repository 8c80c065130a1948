"""A ResNet from torchvision whose last layer has Gaussian weights, federated."""

import torch
from fedbary.strategies import Client, strategy_for
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate
from torchvision.models.resnet import BasicBlock, ResNet

from fedbary.inference import Training
from fedbary.scores.metrics import evaluate
from fedbary.variational import variational

client = ClientApp()
server = ServerApp()
TRAINING = Training(epochs=2, batch_size=32, lr=0.02, kl_weight=0.1)


def network(gaussian_layers):
    resnet = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)  # yours: resnet18(weights=…)
    return variational(resnet, last=gaussian_layers, init_log_var=-5.0)


def digits(rows):
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x[rows] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return interpolate(images, scale_factor=2).expand(-1, 3, -1, -1), torch.tensor(y[rows])


@client.train()
@client.evaluate()
def answer(message, context):
    node, net = context.node_config, network(message.content["config"]["gaussian-layers"])
    x, y = digits(slice(node["partition-id"], 900, node["num-partitions"]))
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
        print(
            f"{rule:6} {scores['accuracy']:.2%} right, NLL {scores['nll']:.3f} nats, "
            f"ECE {scores['ece']:.2%}, epistemic {prediction.epistemic.mean():.4f} nats"
        )
