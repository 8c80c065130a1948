"""Pages show the tables and pictures that their scripts make of the results in the repository."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedbary.figures.sheet import BLUE, GREY, RED, sheet
from fedbary.report.cells import ACCURACY, NLL
from fedbary.scores.stats import paired
from findings.__main__ import commands
from findings._page import PICTURE, draw_differences

ROOT = Path(__file__).resolve().parents[2]
PAGES = [pytest.param(*found, id=found[2].name) for found in commands()]


def test_there_are_such_pages():
    assert PAGES


@pytest.mark.parametrize(("page", "module", "results"), PAGES)
def test_a_page_holds_every_table_that_its_script_makes(page, module, results):
    text = page.read_text()
    made = importlib.import_module(module).tables(results)
    for table in re.findall(r"(?m)^\|(?:.*\n?)+?(?=\n|\Z)", made):
        assert table.strip() in text, f"{page.name} has another table than: {table[:200]}"


@pytest.mark.parametrize(("page", "module", "results"), PAGES)
def test_a_page_shows_the_picture_that_its_script_draws(page, module, results):
    assert (results / PICTURE).is_file()
    assert f"{results.relative_to(ROOT)}/{PICTURE}" in page.read_text()
    assert importlib.import_module(module).picture(results).axes


@pytest.mark.parametrize("metric", [ACCURACY, NLL])
def test_differences_are_drawn_where_they_are_and_in_the_colour_of_who_is_ahead(metric):
    rng = np.random.default_rng(0)
    found = {
        name: paired((shift + rng.normal(0, 0.1, 6)).tolist(), rng.normal(0, 0.1, 6).tolist())
        for name, shift in {"more": 1.0, "less": -1.0, "alike": 0.0}.items()
    }
    axes = sheet(3, 2).subplots()
    draw_differences(axes, metric, found)
    ahead = (RED, BLUE, GREY) if metric.lower_is_better else (BLUE, RED, GREY)
    for row, (pair, color) in enumerate(zip(found.values(), ahead, strict=True)):
        interval, point = axes.lines[2 * row : 2 * row + 2]
        assert [*interval.get_xdata(), *point.get_xdata()] == [pair.low, pair.high, pair.mean]
        assert {*interval.get_ydata(), *point.get_ydata()} == {row}
        assert to_hex(point.get_color()) == to_hex(interval.get_color()) == color.lower()
    assert [text.get_text() for text in axes.get_yticklabels()] == list(found)


def test_a_number_of_pairs_that_is_not_that_of_most_rows_stands_beside():
    rng = np.random.default_rng(0)
    numbers = {"one": 5, "two": 5, "more": 10, "less": 4}
    found = {
        name: paired(rng.normal(size=pairs).tolist(), rng.normal(size=pairs).tolist())
        for name, pairs in numbers.items()
    }
    axes = sheet(3, 2).subplots()
    draw_differences(axes, NLL, found)
    beside = [(text.get_text(), text.xy[0]) for text in axes.texts]
    assert beside == [("10 pairs", found["more"].mean), ("4 pairs", found["less"].mean)]


def test_one_pair_decides_nothing():
    axes = sheet(3, 2).subplots()
    draw_differences(axes, NLL, {"one": paired([1.0], [2.0])})
    assert {to_hex(line.get_color()) for line in axes.lines[:2]} == {GREY.lower()}
