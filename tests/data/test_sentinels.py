"""Words of missing values: numbers that repeat far away, and `missing_words`."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.frame import column, frame_of
from fedbary.data.layout import Layout
from fedbary.data.sentinels import sentinels
from fedbary.data.tables import Choice, coded_rows, emptied, load, load_labelled, read_rows
from fedbary.data.tables._layout import layout_of
from fedbary.errors import SettingError

HONEST = np.random.default_rng(0).normal(27, 5, 95).round(1)


@pytest.mark.parametrize("codes", [{-999: 3}, {9999: 8, -999: 5, -998: 7}, {-1: 0}, {999.9: 40}])
def test_numbers_that_repeat_far_away_are_found_with_their_counts(codes):
    held = [HONEST, *([number] * count for number, count in codes.items()), [np.nan] * 9]
    values = np.random.default_rng(1).permutation(np.concatenate(held))
    assert sentinels(values) == {number: count for number, count in codes.items() if count}


@pytest.mark.parametrize(
    "values",
    [[], [np.nan] * 9, [3.0] * 50, [0.0, 1.0] * 50, [*HONEST, *[-999] * 2], [1, 2, 3, 4, 24] * 20,
     [*np.arange(1.0, 60), *[0.0] * 60], [*HONEST, 1e6]],
)  # fmt: skip
def test_scales_zeros_outliers_and_constants_are_none(values):
    assert sentinels(np.array(values, dtype=float)) == {}


@given(st.lists(st.floats(allow_nan=True, width=32), max_size=40), st.floats(0.1, 1e6))
def test_what_repeats_far_away_does_not_depend_on_order_or_unit(values, scale):
    held = np.array([*values, *[7.0] * 6], dtype=float)
    found = sentinels(held)
    assert sentinels(held[::-1]) == found
    assert all((held == number).sum() == count >= 3 for number, count in found.items())
    assert list(sentinels(-held).values()) == list(found.values())[::-1]


cells = st.sampled_from(["1", "2.5", "-999", "-999.0", "007", "7", ".", "unknown", "", "True", "x"])


@given(st.lists(cells, min_size=1, max_size=30), st.sets(st.sampled_from(["-999", ".", "7", "x"])))
def test_a_column_without_words_is_that_of_cells_that_were_empty(held, words):
    """A word is a text, or a number in any writing; a code such as 007 is no number."""
    number = {"-999.0": "-999"}
    left = ["" if number.get(cell, cell) in words else cell for cell in held]
    found, right = column(np.array(held, dtype=object)).without(words), column(pd.Series(left))
    np.testing.assert_array_equal(found.numbers, right.numbers)
    np.testing.assert_array_equal(found.missing, right.missing)
    assert found.is_text == right.is_text and found.texts.tolist() == right.texts.tolist()


def test_many_numbers_lose_a_word_as_few_do():
    numbers = np.r_[np.arange(200.0), -999, -999]
    found = column(numbers).without({"-999.00"})
    assert found.missing.sum() == 2 and np.isnan(found.numbers[-2:]).all() and not found.is_text


@pytest.mark.parametrize("many", [3, 200])
@pytest.mark.parametrize("word", ["-99.9", "1e30", "inf", "-999"])
def test_a_word_is_found_in_either_width_of_floats(word, many):
    """float32 has -99.9000015 for -99.9: the cell, the tensor and the float64 lose it alike."""
    layout = Layout((("a", ()),), (), missing="mean", missing_words=(word,))
    for width in (np.float32, np.float64):
        numbers = np.r_[np.arange(many), float(word)].astype(width)
        found = column(numbers).without({word})
        assert found.missing.tolist() == [False] * many + [True]
        x = emptied(torch.from_numpy(numbers.astype(np.float64))[:, None], layout)
        assert x[:, 0].isnan().tolist() == found.missing.tolist()


def test_a_row_that_loses_a_word_is_marked_as_empty():
    """A user who codes -999 as it stands marks no cell, and the row is that of an empty cell."""
    columns = (("ward", ("a", "b")), ("dose", ()), ("bmi missing", ()), ("bmi", ()))
    layout = Layout(columns, (), "indicator", ("bmi", "ward"), ("-999",))
    nan = torch.nan
    raw = [[1, 0, 2, 0, -999, 0, 0], [0, 1, -999, 5, 27, 0, 0], [nan, nan, 1, 1, nan, 1, 1]]
    held = [[1, 0, 2, 0, nan, 1, 0], [0, 1, nan, 5, 27, 0, 0], [nan, nan, 1, 1, nan, 1, 1]]
    found = emptied(torch.tensor(raw).double(), layout)
    torch.testing.assert_close(found, torch.tensor(held).double(), equal_nan=True)


def test_a_word_beyond_float32_is_no_infinity():
    assert not column(np.array([1.0, np.inf])).without({"1e300"}).missing.any()


def write(folder, **columns):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"bmi": HONEST, "sex": rng.choice(["f", "m"], 95), "y": HONEST > 27})
    path = folder / "rows.csv"
    table.assign(**columns).to_csv(path, index=False)
    return str(path)


def test_words_are_empty_in_tables_in_rows_to_predict_and_in_python(tmp_path):
    odd = pd.Series(HONEST.astype(str))
    odd[3], odd[5] = "-999", "."
    path, words = write(tmp_path, bmi=odd), ("-999", ".")
    choice = Choice(missing="mean", missing_words=words)
    held = load_labelled(path, tmp_path, "y", choice=choice)
    assert held.x[:, 0].isnan().nonzero()[:, 0].tolist() == [3, 5]
    assert Layout.from_config(held.layout.config()) == held.layout
    same = read_rows(tmp_path / "rows.csv", "y", held.layout)
    torch.testing.assert_close(same.x, held.x, equal_nan=True)
    table = pd.read_csv(path)
    torch.testing.assert_close(coded_rows(table, "y", held.layout), held.x, equal_nan=True)
    raw = held.x.where(~held.x.isnan(), -999.0)
    torch.testing.assert_close(emptied(raw, held.layout), held.x, equal_nan=True)
    with pytest.raises(SettingError, match=r"row 4, feature 'bmi': .*see missing="):
        load_labelled(path, tmp_path, "y", choice=replace(choice, missing="refuse"))


@pytest.mark.parametrize("word", ["009", "1_0", "0x9"])
def test_a_code_is_no_number(word):
    assert not column(pd.Series([9.0, 10, 8])).without([word]).missing.any()


def test_a_refused_cell_names_the_setting(tmp_path):
    odd = pd.Series(HONEST.astype(str))
    odd[5] = "."
    with pytest.raises(SettingError, match=r"row 6, feature 'bmi': .*or missing_words=\. if"):
        load_labelled(write(tmp_path, bmi=odd), tmp_path, "y")


def test_a_target_that_is_a_word_is_refused(tmp_path):
    held = frame_of("x", pd.DataFrame({"a": [1.0, 2, 3], "y": ["p", "q", "."]}), "y")
    with pytest.raises(SettingError, match="row 3, target"):
        layout_of(held.without({"."}))


@pytest.mark.parametrize("of", [load, load_labelled])
def test_numbers_far_away_are_said_with_column_count_and_remedy(of, tmp_path):
    odd = np.where(np.arange(95) % 5, HONEST, -999)
    target = {"y": odd} if of is load else {}
    with pytest.warns(UserWarning) as said:
        of(write(tmp_path, bmi=odd, **target), tmp_path, "y")
    told = [str(each.message) for each in said]
    where = ["feature 'bmi'", *(["target"] if target else [])]
    assert [text.split(": ", 1)[1] for text in told] == [
        f"{name}: -999 stands in 19 of 95 rows, far from all other numbers; "
        "missing_words=-999 takes such cells as empty"
        for name in where
    ]
    with warnings.catch_warnings(action="error"):
        words = Choice(missing="mean", missing_words=("-999",))
        if of is load_labelled:
            of(write(tmp_path, bmi=odd), tmp_path, "y", choice=words)
