"""Trains the network on this client's wines; keeps what it sends."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import save_file
from task import Net, fit, load

app = ClientApp()


@app.train()
def train(message, context):
    partition = context.node_config["partition-id"]
    x, y = load(partition, context.node_config["num-partitions"])
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    fit(net, x, y, seed=partition)
    kept = {**net.state_dict(), "num-examples": torch.tensor(len(x))}
    save_file(kept, Path(context.run_config["folder"], f"{partition}.safetensors"))
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(RecordDict(content), reply_to=message)
