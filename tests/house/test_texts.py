"""What strangers wrote is shown in one short, printable line."""

import traceback

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.client_app import ClientAppException
from flwr.simulation.ray_transport.ray_actor import VirtualClientEngineActor
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import RayTaskError
from strategies_replies import metadata

from fedbary.texts import LONGEST, cause, shown


def is_a_line(text):
    return len(text) <= LONGEST and text.isprintable() and len(text.splitlines()) <= 1


@settings(deadline=None)
@given(st.text(st.characters(categories=None), max_size=3 * LONGEST), st.integers(1, 50))
def test_whatever_is_written_is_shown_as_one_short_printable_line(text, times):
    assert is_a_line(shown(text * times))
    assert is_a_line(cause(text * times))
    shown(text * times).encode()


@settings(deadline=None)
@given(st.text(max_size=LONGEST))
def test_a_short_printable_line_is_shown_as_it_is(text):
    line = " ".join(text.split())
    assert shown(line) == line or not line.isprintable()


def test_of_a_long_text_beginning_and_end_are_shown():
    said = shown("who it is: " + "x" * 10**7 + "\n\x1b[2Jwhy")
    assert said.startswith("who it is: x") and said.endswith(r" \x1b[2Jwhy")


def test_of_an_error_under_ray_the_cause_is_shown():
    message = Message(RecordDict(), metadata=metadata(1))

    def load():
        raise ValueError("data_dir: '/none' is not there")

    with pytest.raises(ClientAppException) as caught:
        VirtualClientEngineActor().run(load, message, "1", Context(1, 1, {}, RecordDict(), {}))
    frames = "".join(traceback.format_exception(caught.value))
    error = RayTaskError("ClientAppActor.run", frames, caught.value).as_instanceof_cause()
    reason = f"{type(error)}:<'{error}'>"  # as Flower's simulation puts it
    assert "not there" not in reason[:LONGEST]
    assert cause(reason) == "data_dir: '/none' is not there"
