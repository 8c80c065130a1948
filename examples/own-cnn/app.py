"""Federated uncertainty for a model of one's own: its data, a client and the server."""

import torch
from fedbary.strategies import strategy_for
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits

from fedbary.inference import Training, variational
from fedbary.variational.layers import VariationalLinear, reset_layer
from fedbary.variational.noise import drawing

client = ClientApp()
server = ServerApp()
TRAINING = Training(epochs=5, batch_size=50, lr=0.05, log_var_lr=0.01, kl_weight=0.1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(64, 64), VariationalLinear(64, 10)
        reset_layer(self.out, init_log_var=-5.0, generator=torch.default_generator)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


def digits(which):
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[which] / 16, dtype=torch.float32), torch.tensor(y[which])


@client.train()
def train(message, context):
    node, net = context.node_config, Net()
    x, y = digits(slice(node["partition-id"], 1200, node["num-partitions"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    variational.fit(net, x, y, prior=1.0, training=TRAINING, seed=context.run_config["seed"])
    metrics, arrays = MetricRecord({"num-examples": len(x)}), ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    torch.manual_seed(context.run_config["seed"])
    (x, y), net = digits(slice(1200, None)), Net().eval()
    strategy = strategy_for(context.run_config["rule"])(fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(net.state_dict()), context.run_config["rounds"])
    net.load_state_dict(result.arrays.to_torch_state_dict())
    with drawing(net, torch.manual_seed(1)), torch.no_grad():
        probs = sum(net(x).softmax(-1) for _ in range(50)) / 50
    right, entropy = probs.argmax(-1) == y, torch.special.entr(probs).sum(-1)
    order = entropy.argsort()
    print(f"NLL {-probs[range(len(y)), y].log().mean():.3f} nats")
    for name, part in {"all": order, "surest 80 %": order[:478], "others": order[478:]}.items():
        print(f"{right[part].float().mean():7.2%} right, {entropy[part].mean():.3f} nats: {name}")
    for i in order[-5:]:
        print(f"digit {1200 + i}: {probs[i].argmax()}? is {y[i]}; {entropy[i]:.3f} nats")
