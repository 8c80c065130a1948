"""The real apps, of which some sites change what they send."""

from flwr.clientapp import ClientApp

import client_app
from server_app import run
from server_app.engine.inline import InlineGrid

ACTIONS = {
    "query": lambda app: app.query(),
    "train": lambda app: app.train(),
    "evaluate": lambda app: app.evaluate(),
    "ask": lambda app: app.query("ask"),
}


def run_with_a_hostile_site(chosen, folder, spoil, *partitions):
    """Run a federation in which `spoil(action, reply)` changes the replies of some partitions."""
    app = ClientApp()

    def spoilt(action):
        answer = getattr(client_app, action)

        def answered(message, context):
            reply = answer(message, context)
            if context.node_config["partition-id"] not in (partitions or (0,)):
                return reply
            spoil(action, reply)
            return reply

        return answered

    for action, register in ACTIONS.items():
        register(app)(spoilt(action))
    run(InlineGrid(app, chosen.clients, chosen.model_dump()), chosen, folder)
