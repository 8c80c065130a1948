"""Trains the network on this client's digits; keeps what it sends."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, fit, load

app = ClientApp()


@app.train()
def train(message, context):
    partition = context.node_config["partition-id"]
    x, y = load(partition, context.node_config["num-partitions"])
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    fit(net, x, y, seed=partition)
    torch.save((len(x), net.state_dict()), Path(context.run_config["folder"], f"{partition}.pt"))
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(RecordDict(content), reply_to=message)
