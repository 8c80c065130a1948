"""Every entry of a line of metrics.jsonl is named in the schema, and the page has each of them."""

import pytest
from runs_of import SHORT, lines

from docs._pages import metrics_table
from fedbary.runs import schema
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_class

QUICK = {**SHORT, "clients": 2, "holdout": 0.3}
IMAGES = {"dataset": "digits", "train_fraction": 0.1}
RUNS = {
    "classes": {**IMAGES, "corruptions": True, "calibrate": "temperature", "keep_best": "nll"},
    "personal": {**IMAGES, "projection": "WB", "evaluate_clients": True},
    "members": {**IMAGES, "method": "FedPPD"},
    "tables": {"task": "tables"},
    "regression": {"task": "regression", "holdout": 0.0},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_writes_what_the_schema_names(name, tmp_path):
    run_inline(resolve({**QUICK, **RUNS[name]}), tmp_path / "run")
    found = {key for line in lines(tmp_path / "run") for key in line}
    assert found <= schema.ENTRIES.keys()


def test_the_scores_of_a_task_are_named():
    assert task_class("tables").limits.keys() <= schema.ENTRIES.keys()


def test_an_entry_is_a_constant_and_a_row_of_the_page():
    constants = {value for name, value in vars(schema).items() if name.isupper() and name[0] != "_"
                 and isinstance(value, str)}  # fmt: skip
    assert constants == schema.ENTRIES.keys()
    page = metrics_table()
    assert all(f"| `{name}` |" in page for name in schema.ENTRIES)
