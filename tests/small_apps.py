"""ClientApps of some lines."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedbary.strategies import Client


def not_finite(arrays):
    """Make the first array that may be one NaN."""
    next(t for t in arrays.values() if t.is_floating_point()).fill_(torch.nan)


def answering(client_of, spoiled=(), spoil=not_finite, mods=()):
    """Clients by their number; replies of the pairs (number, round) in `spoiled` are spoilt."""
    app = ClientApp(mods=list(mods))

    @app.train()
    @app.evaluate()
    def answer(message, context):
        k = int(context.node_config["partition-id"])
        client: Client = client_of(k)
        reply = client.answer(message, context)
        asked = k, message.content["config"]["server-round"]
        if "arrays" in reply.content and asked in spoiled:
            arrays = reply.content["arrays"].to_torch_state_dict()
            spoil(arrays)
            reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return app


def moving(train, size=lambda k: 1 + k):
    """Clients that make a state dict of another: `train(state, number, round)`."""
    app = ClientApp()

    @app.train()
    def answer(message, context):
        k = int(context.node_config["partition-id"])
        state = message.content["arrays"].to_torch_state_dict()
        state = train(state, k, message.content["config"]["server-round"])
        metrics = MetricRecord({"num-examples": size(k), "partition-id": k})
        return Message(
            RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message
        )

    return app
