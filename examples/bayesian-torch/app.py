"""A network of bayesian-torch's layers, trained by a loop of one's own, federated."""

import torch
from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
from fedbary.strategies import RKLB, parameter_groups
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from fedbary.scores.metrics import evaluate

client = ClientApp()
server = ServerApp()
PRIOR = {
    "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
    "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5,
}  # fmt: skip


def network():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    dnn_to_bnn(net, PRIOR)
    return net


def digits(rows):
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[rows] / 16, dtype=torch.float32), torch.tensor(y[rows])


@client.train()
def train(message, context):
    node, net = context.node_config, network()
    x, y = digits(slice(node["partition-id"], 1200, node["num-partitions"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    groups = parameter_groups(net, lr=0.005, log_var_lr=0.01, convention="bayesian-torch")
    optimiser = torch.optim.Adam(groups)
    for _ in range(10):
        for batch in torch.randperm(len(y)).split(32):
            optimiser.zero_grad()
            kl = get_kl_loss(net) / len(y)
            (cross_entropy(net(x[batch]), y[batch]) + 0.1 * kl).backward()
            optimiser.step()
    metrics, arrays = MetricRecord({"num-examples": len(y)}), ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    x, y = digits(slice(1200, None))
    barycentre = RKLB(convention="bayesian-torch", fraction_evaluate=0.0)
    for strategy in (barycentre, FedAvg(fraction_evaluate=0.0)):
        torch.manual_seed(context.run_config["seed"])
        net = network()
        rounds = context.run_config["rounds"]
        result = strategy.start(grid, ArrayRecord(net.state_dict()), rounds)
        net.load_state_dict(result.arrays.to_torch_state_dict())
        with torch.no_grad():
            probs = torch.stack([net(x).softmax(-1) for _ in range(50)]).mean(0)
        scores = evaluate(probs, y)
        print(
            f"{type(strategy).__name__:6} {scores['accuracy']:.2%} right, "
            f"NLL {scores['nll']:.3f} nats, ECE {scores['ece']:.2%}"
        )
