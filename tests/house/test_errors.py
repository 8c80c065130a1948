"""A bad setting is said in one line, whether it was a value or an error that reading it raised."""

from copy import deepcopy

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given

from fedbary.errors import RunError, SettingError, last_words
from fedbary.texts import SCREEN


def test_a_value_is_quoted_and_the_text_of_an_error_is_not():
    assert str(SettingError("rounds", 0, "1 or more")) == "rounds: 0; expected 1 or more"
    assert str(SettingError("rule", "Krum", "WB")) == "rule: 'Krum'; expected WB"
    cause = OSError("cannot\n  be read")
    assert str(SettingError("a.png", cause, "an image")) == (
        "a.png: cannot be read; expected an image"
    )
    assert str(SettingError("a.npz", MemoryError(), "a file")) == (
        "a.npz: MemoryError; expected a file"
    )


@given(st.text(), st.text())
def test_names_of_strangers_do_not_reach_the_terminal_as_they_are(setting, allowed):
    assert str(SettingError(setting, 0, allowed)).isprintable()


@given(st.one_of(st.text(), st.binary(), st.integers(), st.text().map(ValueError)))
def test_whatever_was_held_the_message_is_one_line_and_travels_between_processes(held):
    error = SettingError("setting", held, "something else")
    assert len(str(error).splitlines()) == 1 and str(error).isprintable()
    assert str(deepcopy(error)) == str(error)  # by __reduce_ex__, as between processes


@pytest.mark.parametrize("part", range(3))
def test_no_text_of_a_stranger_makes_a_long_message(part):
    texts = ["short"] * 3
    texts[part] = "\x1b" * 10**6
    error = SettingError(*texts)
    assert len(str(error)) < 2 * SCREEN and str(error).isprintable()
    assert len(str(SettingError("a", ValueError(texts[part]), "b"))) < SCREEN
    assert len(str(SettingError("a", [texts[part]], "b"))) < SCREEN
    assert str(SettingError("x" * 400, "y" * 400, "z")) == f"{'x' * 400}: {'y' * 400!r}; expected z"


@pytest.mark.parametrize(
    "grasp",
    [
        lambda: bytearray(2**62),
        lambda: np.empty(2**59),
        lambda: torch.empty(2**60),
        lambda: pa.allocate_buffer(2**60),
    ],
)
def test_memory_that_ran_out_is_no_fault_of_the_program_whoever_asked_for_it(grasp):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        grasp()
    said = last_words(caught.value)
    assert said.startswith("too little memory here: ") and len(said.splitlines()) == 1
    assert last_words(RuntimeError("a fault")) is None
    assert last_words(RunError("it ended")) == "it ended"
