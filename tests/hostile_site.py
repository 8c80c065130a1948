"""The real apps, of which some sites change what they send, or whose server is cut off."""

from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from flwr.clientapp import ClientApp

from fedbary import client_app
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid

ACTIONS = {
    "query": lambda app: app.query(),
    "train": lambda app: app.train(),
    "evaluate": lambda app: app.evaluate(),
    "ask": lambda app: app.query("ask"),
}


def app_of(**changed):
    """The project's ClientApp, with other functions for some of its actions."""
    app = ClientApp(mods=[client_app.apply_mods])
    for action, register in ACTIONS.items():
        register(app)(changed.get(action) or getattr(client_app, action))
    return app


def run_with(chosen, folder, **changed):
    """Run a federation whose clients have other functions for some of their actions."""
    run(InlineGrid(app_of(**changed), chosen.clients, chosen.model_dump()), chosen, folder)


def run_with_a_hostile_site(chosen, folder, spoil, *partitions):
    """Run a federation in which `spoil(action, reply)` changes the replies of some partitions."""

    def spoilt(action):
        answer = getattr(client_app, action)

        def answered(message, context):
            reply = answer(message, context)
            if context.node_config["partition-id"] not in (partitions or (0,)):
                return reply
            spoil(action, reply)
            return reply

        return answered

    run_with(chosen, folder, **{action: spoilt(action) for action in ACTIONS})


def cut_off(chosen, folder, messages, actions=("train",), during=lambda: None):
    """Make a run in which the server is interrupted while it waits for a later message."""
    left = iter(range(messages))

    def stopping(action):
        def answered(message, context):
            if next(left, None) is None:
                during()
                raise KeyboardInterrupt
            return getattr(client_app, action)(message, context)

        return answered

    with pytest.raises(KeyboardInterrupt):
        run_with(chosen, folder, **{action: stopping(action) for action in actions})


@contextmanager
def killed_at(place):
    """Interrupt what runs within where it calls a function of the library."""
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(place, Mock(side_effect=KeyboardInterrupt))
        yield
