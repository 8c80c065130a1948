"""What strangers wrote is shown in one short, printable line."""

import time
import traceback

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.client_app import ClientAppException
from flwr.simulation.ray_transport.ray_actor import VirtualClientEngineActor
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayTaskError
from strategies_replies import metadata

from fedbary.errors import SettingError
from fedbary.texts import LONGEST, cause, shown


def is_a_line(text):
    return len(text) <= LONGEST and text.isprintable() and len(text.splitlines()) <= 1


@given(st.text(st.characters(categories=None), max_size=3 * LONGEST), st.integers(1, 50))
def test_whatever_is_written_is_shown_as_one_short_printable_line(text, times):
    assert is_a_line(shown(text * times))
    assert is_a_line(cause(text * times))
    shown(text * times).encode()


@given(st.text(max_size=LONGEST))
def test_a_short_printable_line_is_shown_as_it_is(text):
    line = " ".join(text.split())
    assert shown(line) == line or not line.isprintable()


def test_of_a_long_text_beginning_and_end_are_shown():
    said = shown("who it is: " + "x" * 10**7 + "\n\x1b[2Jwhy")
    assert said.startswith("who it is: x") and said.endswith(r" \x1b[2Jwhy")


@given(st.text(max_size=3 * LONGEST))
def test_of_an_error_of_a_real_site_kind_and_message_are_shown(text):
    error = SettingError("data_dir", text, "a folder")
    reason = f"{type(error)}:<'{error}'>"  # as Flower's SuperNode puts it
    assert cause(reason) == shown(f"SettingError: {error}")


def test_a_forged_frame_is_read_in_no_time():
    for reason in ("<class '" + "." * 10**6 + "a" * 10**6, "<class '" + ".a" * 10**6 + ":<'"):
        started = time.process_time()
        assert is_a_line(cause(reason))
        assert time.process_time() - started < 5


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
