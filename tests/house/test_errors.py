"""A bad setting is said in one line, whether it was a value or an error that reading it raised."""

from copy import deepcopy

import hypothesis.strategies as st
from hypothesis import given

from fedbary.errors import SettingError


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
