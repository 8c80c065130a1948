"""A run that fails says why below all that Flower says of its end."""

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.exit.exit_handler import trigger_exit_handlers

import server_app
from fedbary.errors import SettingError
from server_app.engine.inline import InlineGrid


def _flower_ends():
    for before in (True, False):
        trigger_exit_handlers(run_before_force_exit=before)


def test_the_reason_is_said_at_once_and_again_at_flower_s_exit(caplog):
    _flower_ends()  # what earlier runs of this process had to say
    config = {"settings": "rule=RKBL"}
    context = Context(1, 1, {}, RecordDict(), config)
    with pytest.raises(SettingError):
        server_app.app(InlineGrid(ClientApp(), 1, config), context)
    reason = caplog.messages[-1]
    assert reason.startswith("fedbary: rule: 'RKBL'; expected")
    caplog.clear()
    _flower_ends()
    assert caplog.messages == [reason]
