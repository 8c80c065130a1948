"""The client."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from mine.task import load_data, make_net
from mine.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = make_net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    node = context.node_config
    x, y = load_data(node["partition-id"], node["num-partitions"])
    lr = msg.content["config"]["lr"]
    train_loss = train_fn(model, x, y, context.run_config["local-epochs"], lr)
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)
