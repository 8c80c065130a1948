"""Plain Flower: FedAvg over all clients."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import save_file
from task import Net

app = ServerApp()


@app.main()
def main(grid, context):
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    arrays = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, arrays, num_rounds=context.run_config["rounds"])
    path = Path(context.run_config["folder"], "global.safetensors")
    save_file(dict(result.arrays.to_torch_state_dict()), path)
