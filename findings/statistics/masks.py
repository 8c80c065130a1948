"""A client app of three sites whose masks cancel in the sum; `servers` gives it to SuperNodes.

A site's place is its name's last character. Sites share the key of the masks by their node config.
"""

import logging

import numpy as np
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp

from fedbary import client_app

SITES, KEY, SIZE = 3, "mask-key", 1e5


def masks(message: Message, context: Context, call_next) -> Message:
    """Answer, with masks added to each number of a training reply."""
    reply = call_next(message, context)
    if message.metadata.message_type != "train" or reply.has_error():
        return reply
    me, key = int(context.node_config["name"][-1]), int(context.node_config[KEY])
    said = int(message.content.config_records["config"]["server-round"])
    for record in reply.content.array_records.values():
        for number, name in enumerate(sorted(record)):
            value = record[name].numpy()
            for other in {*range(SITES)} - {me}:
                counter = [said, number, min(me, other), max(me, other)]
                draw = np.random.Generator(np.random.Philox(key=key, counter=counter))
                noise = SIZE * draw.normal(size=value.shape)
                value = value + (noise if me < other else -noise)
            record[name] = Array(value)
    logging.getLogger("flwr").info("round %d: masks of size %g are added", said, SIZE)
    return reply


app = ClientApp(mods=[masks, client_app.apply_mods])
app.query()(client_app.query)
app.query("ask")(client_app.ask)
app.train()(client_app.train)
app.evaluate()(client_app.evaluate)
