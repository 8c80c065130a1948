"""The server."""

from fedbary.strategies import RKLB
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from mine.task import make_net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord(make_net().state_dict())
    strategy = RKLB(fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    save_file(result.arrays.to_torch_state_dict(), "final_model.safetensors")
