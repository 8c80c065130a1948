"""The page of what leaves a site lists what does: its rows are made again and compared."""

import importlib.util
import os
from pathlib import Path

import pytest

from fedbary.parts.registry import methods, modules

DOCS = Path(__file__).parents[2] / "docs"
EVERY = bool(os.environ.get("FEDBARY_EVERY_METHOD"))
FORMS = ("barycentre", "FedHBMixture", "FedPop", "pFedVem", "FedLPA", "LastLayerLaplace")
"""Methods by day: each sends other arrays."""


@pytest.fixture(scope="module")
def made():
    spec = importlib.util.spec_from_file_location("_leaving", DOCS / "_leaving.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(made):
    """The page's rows, by the names of their tables."""
    text, found = made.PAGE.read_text(encoding="utf-8"), {}

    def kept(name):
        part = text.split(f"<!-- made: {name} -->\n\n")[1].split("\n\n")[0]
        found[name] = part.splitlines()[2:]
        return found[name]

    assert made.filled(text, kept) == text
    return found


@pytest.mark.slow
@pytest.mark.parametrize("task", modules("tasks"))
def test_the_page_has_every_name_in_every_reply_of_a_task(task, made, tables):
    assert tables[task] == made.task_rows(task)


@pytest.mark.parametrize("method", methods() if EVERY else FORMS)
def test_the_page_has_every_array_and_metric_of_a_method(method, made, tables):
    assert made.method_row(method) in tables["methods"]


@pytest.mark.slow
def test_the_page_has_every_array_and_metric_of_a_local_inference(made, tables):
    assert tables["inferences"] == made.rows_of("inferences")


def test_the_page_has_every_name_in_every_reply_of_a_look(made, tables):
    assert tables["look"] == made.look_rows()


def test_the_page_has_a_table_for_each_task_and_rows_of_methods_that_are_there(made, tables):
    """With every method it has each; a new one is on the page once that is made again."""
    assert list(tables) == [*made.RUNS, "look", "methods", "inferences"]
    assert sorted(made.RUNS) == sorted(modules("tasks"))
    named = [row.split("]")[0].removeprefix("| [") for row in tables["methods"]]
    there = list(methods())
    assert named == (there if EVERY else [name for name in there if name in named])
