"""Tables and numbers of the pages with results are those of the runs in findings/."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedbary.figures.document import markdown_table
from fedbary.figures.sheet import BLUE, GREY, RED, sheet
from fedbary.report.results import ACCURACY, NLL
from fedbary.scores.stats import paired
from findings._docs import ROOT, TABLE, commands, filled, loose, tables_of
from findings.maker import PICTURE, draw_differences

TIMINGS = {ROOT / "docs/results" / page for page in ("benchmarks.md", "how-far.md")}
"""Their numbers are measured by benchmarks/, on a machine that is told."""

RESULTS = {*commands(), *(ROOT / "docs/results").glob("*.md")} - TIMINGS
PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in sorted(RESULTS)]
MEASURED = re.compile(r"\d\.\d+ ±|\[[+-]\d")
DRAWN = {each.module: each for made in commands().values() for each in made if not each.part}


def test_there_are_such_pages():
    assert ROOT / "README.md" in commands() and len(commands()) > 10


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_its_command_writes_and_has_no_other_measured_table(page):
    text, tables = page.read_text(encoding="utf-8"), tables_of(commands().get(page, []))
    assert filled(text, tables) == text
    others = [table for table in TABLE.findall(text) if table not in tables]
    assert not [table for table in others if MEASURED.search(table)]


@pytest.mark.parametrize("page", PAGES)
def test_the_numbers_of_its_sentences_are_those_of_runs_grids_and_papers(page):
    assert loose(page) == []


@pytest.mark.parametrize("page", PAGES)
def test_its_pictures_are_there(page):
    text = page.read_text(encoding="utf-8")
    for each in commands().get(page, []):
        if each.function("picture"):
            assert f"{each.folder.relative_to(ROOT)}/{PICTURE}" in text
    for picture in re.findall(r"\]\(([^)]+\.png)\)", text):
        assert (page.parent / picture).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("module", DRAWN, ids=lambda module: module.__name__)
def test_a_picture_can_be_drawn_of_a_folder_of_each_kind(module):
    if picture := DRAWN[module].function("picture"):
        assert picture(DRAWN[module].folder).axes


def test_tables_are_filled_in_by_their_first_lines_in_their_order():
    one, two, other = (markdown_table(["a", "b"], [["1", n]]) for n in "567")
    text = f"# T\n\n{one}\n\nwords\n\n| c |\n| --- |\n| 3 |\n\n{two}\n"
    assert filled(text, [one, two]) == text
    assert filled(text, [one, other]) == text.replace(two, other)
    with pytest.raises(ValueError, match=r"no table for: \| d \|"):
        filled(text, [markdown_table(["d"], [])])
    with pytest.raises(ValueError, match="no table for"):
        filled(text, [one, two, other])


def test_a_number_that_no_run_has_is_found(tmp_path):
    page = tmp_path / "page.md"
    words = "`0.11` [0.12](a.md) 1,000 images, [0.13, x], v0.14, −7.5 %, .25\n\n| a |\n| - |\n"
    page.write_text(f"# 0.5\n\n{words}| 0.15 |\n", encoding="utf-8")
    assert loose(page) == ["0.12", "0.13", "7.5", ".25"]


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
