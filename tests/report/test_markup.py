"""No element of a report comes from data, and whatever data say is shown as it stands."""

import warnings
from html.parser import HTMLParser
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from every_method import NIGHT
from hypothesis import example, given

from fedbary.figures.document import Document, bold, code, italic
from fedbary.figures.run_pictures import partition_heatmap
from fedbary.report.report import write_report
from fedbary.study.table import read_table, write_about, write_table

ROOT = Path(__file__).resolve().parents[2]
FEW = {
    "best": {"dataset": ["cifar10"], "seed": ["0", "1"]},
    "regression": {"dataset": ["yacht"], "split": ["0", "1"]},
}
"""Of tables of results a part that is quickly drawn."""

PIECES = st.sampled_from(
    ["<script>alert(1)</script>", "<img src=x>", "![x](http://y/z.png)", "[x](javascript:y)", "|",
     "**x**", "__x__", "`", "``", "\\", "</td>", "</table>", "&lt;", "&#60;b>", "\n\n# x", "\n- x",
     "1. x", "---", "<!--", "-->", "$x$", "~~x~~", "{x}", "<http://y>", "http://y", "]]>", "_", "*",
     '"', "src=\"figures/x\"", "\t", "a", " "]
)  # fmt: skip
DATA = st.one_of(st.lists(PIECES, max_size=6).map("".join), st.text(max_size=30))


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text in those asked for."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        shown = [(k, "…" if k == "src" else v) for k, v in attributes]
        self.elements.append((tag, *shown))
        self.texts.append("")

    def handle_comment(self, data):
        self.elements.append(("comment", data))

    def handle_endtag(self, tag):
        self.elements.append(("end", tag))
        self.texts.append("")

    def handle_data(self, data):
        self.texts[-1:] = ["".join([*self.texts[-1:], data])]


def shown(data):
    """Text as a reader sees it: one line, without what no file can hold."""
    whole = " ".join(data.encode(errors="replace").decode().split())
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")


def page_of(folder, data):
    document = Document(folder, data)
    document.heading(data, 3)
    document.text("{data}", data=data)
    document.text("Of **{data}** and so on.", data=data)
    document.table(["a", data], [[data, code(data)], [bold(data), bold(italic(data))]])
    document.table([data], [[data]], "folded")
    document.write()
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@given(DATA)
@example("a\\|b`")
@example("__a__ _b_")
def test_whatever_data_say_the_elements_are_the_same_and_the_words_are_theirs(tmp_path, data):
    expected = shown(data)
    harmless = page_of(tmp_path, "x" if expected else "").elements
    page = page_of(tmp_path, data)
    assert page.elements == harmless
    texts = [text.strip() for text in page.texts]
    assert texts.count(expected) >= (9 if expected else 0)


HOSTILE = '<script>alert("x")</script><img src=x> ![y](z) **b** `c` | $x^$'


@pytest.mark.parametrize("kind", FEW if NIGHT else ["best"])
def test_no_element_of_a_whole_report_comes_from_its_table_or_its_title(kind, tmp_path):
    table = read_table(ROOT / "findings" / kind).astype(object)
    table = table.where(table.notna(), "").astype(str)
    for column, kept in FEW[kind].items():
        table = table[table[column].isin(kept)]
    assert len(table)
    pages = []
    for name, suffix in (("harmless", "-x"), ("hostile", HOSTILE)):
        (tmp_path / name).mkdir()
        changed = table.copy()
        for column in ("dataset", "commit", "started", "run", "device", "versions.flwr"):
            changed[column] = changed[column] + suffix
        write_table(tmp_path / name, [changed])
        write_about(tmp_path / name, f"title{suffix}", f"about{suffix}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            page = write_report(tmp_path / name).read_text(encoding="utf-8")
        pages.append(Page(page))
    harmless, hostile = pages
    assert hostile.elements == harmless.elements
    assert sum(HOSTILE in text for text in hostile.texts) > 5


def test_names_of_sites_are_no_formulas():
    figure = partition_heatmap(pd.DataFrame([[1, 2], [3, 4]]).to_numpy(), ["$x^$", "a" * 64])
    figure.canvas.draw()
    (axes, _) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()][0] == "$x^$"
    assert axes.get_ylabel() == "Site"
    assert partition_heatmap(pd.DataFrame([[1], [3]]).to_numpy()).axes[0].get_ylabel() == "Client"


def test_a_wide_picture_scrolls_and_a_narrow_one_shrinks(tmp_path):
    """A heatmap of ten classes keeps its size on a telephone: its letters stay legible."""
    page = Document(tmp_path, "Pictures")
    for columns in (2, 10):
        counts = np.ones((3, columns), dtype=int)
        page.figures([(f"of-{columns}", partition_heatmap(counts))], "Who holds what.")
    page.write()
    shown = Page((tmp_path / "report.html").read_text()).elements
    images = [dict(element[1:]) for element in shown if element[0] == "img"]
    assert [image.get("class") for image in images] == [None, "wide"]
    assert [name for name, *_ in shown].count("span") == 2
