"""Hospitals train a model of tumours together; cases that it is unsure of go to a person."""

import torch
from fedbary.strategies import Client, strategy_for
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_breast_cancer
from torch import nn

from fedbary.inference import Training
from fedbary.scores.metrics import evaluate
from fedbary.trained.judgement import referral
from fedbary.variational import variational

client = ClientApp()
server = ServerApp()
TRAINING = Training(epochs=5, batch_size=16, lr=0.02, kl_weight=0.01)


def network(gaussian_layers):
    mlp = nn.Sequential(
        nn.BatchNorm1d(30, affine=False),  # its averaged moments standardise the columns
        *(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 2)),
    )
    return variational(mlp, last=gaussian_layers, init_log_var=-5.0)


def patients(rows):
    x, y = load_breast_cancer(return_X_y=True)
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[rows]
    return torch.tensor(x, dtype=torch.float32)[shuffled], torch.tensor(y)[shuffled]


@client.train()
@client.evaluate()
def answer(message, context):
    node, net = context.node_config, network(message.content["config"]["gaussian-layers"])
    x, y = patients(slice(node["partition-id"], 269, node["num-partitions"]))
    held_out = x[:20], y[:20]
    return Client(net, x[20:], y[20:], TRAINING, held_out=held_out).answer(message, context)


@server.main()
def main(grid, context):
    (known, outcome), (new, truth) = patients(slice(269, 419)), patients(slice(419, None))
    for rule, gaussian_layers in {"RKLB": 2, "FedAvg": 0}.items():
        torch.manual_seed(context.run_config["seed"])
        net, strategy = network(gaussian_layers), strategy_for(rule)()
        said = ConfigRecord({"gaussian-layers": gaussian_layers})
        result = strategy.start(
            grid, ArrayRecord(net.state_dict()), context.run_config["rounds"],
            train_config=said, evaluate_config=said,
        )  # fmt: skip
        on_known = strategy.predict(net, result.arrays, known, samples=50)
        chosen = referral(on_known, outcome, context.run_config["error-rate"])
        prediction = strategy.predict(net, result.arrays, new, samples=50)
        person = torch.from_numpy(chosen.to_person(prediction))
        wrong = prediction.probs.argmax(1) != truth
        print(
            f"{rule:6} NLL {evaluate(prediction.probs, truth)['nll']:.3f} nats, "
            f"{wrong.sum()} of {len(wrong)} wrong; {person.sum()} cases to a person above "
            f"{chosen.threshold:.3f} nats, {(wrong & ~person).sum()} of the other "
            f"{(~person).sum()} wrong"
        )
