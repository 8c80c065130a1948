"""Tables from Parquet, Hugging Face and functions of one's own, equal to those from CSV."""

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from fedbary.data.tables import Choice, load, load_labelled, read_rows
from fedbary.errors import SettingError

RNG = np.random.default_rng(0)
ROWS = pd.DataFrame(
    {
        "age": RNG.uniform(20, 90, 40).round(3),
        "visits": pd.array(RNG.integers(0, 9, 40), dtype="Int64"),
        "ward": pd.Categorical(["north", "south"] * 20),
        "smoker": [True, False, False, True] * 10,
        "outcome": ["well", "ill", "ill", "well"] * 10,
    }
)
NUMBERS = ROWS[["age", "visits", "smoker"]]


@pytest.fixture
def folder(tmp_path):
    ROWS.assign(smoker=ROWS["smoker"].astype(int)).to_csv(tmp_path / "t.csv", index=False)
    NUMBERS.assign(smoker=ROWS["smoker"].astype(int)).to_csv(tmp_path / "n.csv", index=False)
    ROWS.to_parquet(tmp_path / "t.parquet")
    NUMBERS.to_parquet(tmp_path / "n.parquet")
    for name, rows in (("t", ROWS), ("n", NUMBERS)):
        datasets.Dataset.from_pandas(rows).save_to_disk(tmp_path / f"{name}-saved")
        (tmp_path / f"{name}-files").mkdir()
        rows.to_parquet(tmp_path / f"{name}-files" / "train.parquet")
    return tmp_path


@pytest.mark.parametrize("source", ["t.parquet", "hf:t-saved", "hf:t-files"])
def test_every_form_of_a_table_holds_the_same_rows_and_classes(source, folder):
    csv, other = (load_labelled(name, folder, "outcome") for name in ("t.csv", source))
    assert csv.layout == other.layout and csv.layout.classes == ("ill", "well")
    assert torch.equal(csv.x, other.x) and torch.equal(csv.y, other.y)


@pytest.mark.parametrize("source", ["n.parquet", "hf:n-saved", "hf:n-files"])
def test_every_form_of_a_regression_holds_the_same_rows(source, folder):
    csv, other = (load(name, folder, "age") for name in ("n.csv", source))
    assert csv.layout.features == other.layout.features == ("visits", "smoker")
    assert torch.equal(csv.x, other.x) and torch.equal(csv.y, other.y)


def test_a_data_set_s_test_part_is_a_prescribed_split_and_its_classes_have_names(tmp_path):
    kinds = datasets.Features(
        {"a": datasets.Value("float32"), "kind": datasets.ClassLabel(names=["no", "yes"])}
    )
    made = datasets.Dataset.from_dict({"a": [1.0, 2, 3, 4], "kind": [0, 1, 1, 0]}, features=kinds)
    datasets.DatasetDict(train=made, test=made.select([1])).save_to_disk(tmp_path / "d")
    held = load_labelled("hf:d", tmp_path, "kind")
    assert held.layout.classes == ("no", "yes") and held.y.tolist() == [0, 1, 1, 0, 1]
    assert held.split(0).train.tolist() == [0, 1, 2, 3] and held.split(0).test.tolist() == [4]
    refused("split: 1", held.split, 1)


def test_a_number_beyond_the_named_classes_is_refused_with_its_row(tmp_path):
    kinds = {"a": datasets.Value("int64"), "kind": datasets.ClassLabel(names=["no", "yes"])}
    plain = datasets.Dataset.from_dict({"a": [1, 2, 3], "kind": [0, 1, 5]})
    plain.cast(datasets.Features(kinds)).save_to_disk(tmp_path / "d")
    refused("row 3, kind: 5; expected 0 to 1: no, yes", load_labelled, "hf:d", tmp_path, "kind")


@pytest.mark.parametrize("named", [True, False])
def test_a_part_whose_labels_are_hidden_does_not_test(named, tmp_path):
    kind = datasets.ClassLabel(names=["no", "yes"]) if named else datasets.Value("int64")
    kinds = datasets.Features({"a": datasets.Value("float32"), "kind": kind})

    def part(labels):
        rows = {"a": np.arange(len(labels)), "kind": labels}
        return datasets.Dataset.from_dict(rows, features=kinds)

    parts = {"train": part([0, 1] * 10), "test": part([-1, -1])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "two")
    datasets.DatasetDict(parts, validation=part([0, 1])).save_to_disk(tmp_path / "three")
    with pytest.warns(UserWarning, match="test has no labels, validation is the test part"):
        held = load_labelled("hf:three", tmp_path, "kind")
    assert held.split(0).test.tolist() == [20, 21]
    with pytest.warns(UserWarning, match="test has no labels, a part of train is the test part"):
        held = load_labelled("hf:two", tmp_path, "kind")
    assert not held.splits and len(held.y) == 20


def test_a_function_of_one_s_own_returns_a_dataframe(tmp_path):
    held = load_labelled("own_data:patients", tmp_path, "outcome")
    assert held.layout.features == ("age", "ward=a", "ward=b") and len(held.y) == 200
    for name, match in (
        ("own_data:three", "a pandas DataFrame, not a int"),
        ("own_data:absent", "can be imported"),
        ("own_data:fails", "RuntimeError: no disk"),
    ):
        refused(match, load, name, tmp_path, "age")


def test_examples_are_read_from_parquet_too(folder):
    layout = load_labelled("t.csv", folder, "outcome").layout
    csv, parquet = (read_rows(folder / f"t.{e}", "outcome", layout) for e in ("csv", "parquet"))
    assert torch.equal(csv.x, parquet.x) and torch.equal(csv.y, parquet.y)
    assert set(parquet.columns) == set(ROWS.columns)
    measured = read_rows(folder / "n.parquet", "age", load("n.csv", folder, "age").layout)
    assert measured.y.tolist() == NUMBERS["age"].tolist()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.drop(columns="outcome"), "target: 'outcome';.*age, visits, ward, smoker"),
        (lambda t: t.assign(age=pd.Timestamp("2026")), "feature 'age': 'datetime64.*numbers or te"),
        (lambda t: t.assign(age=[b"x"] * 40), "feature 'age': 'object';.*numbers or text"),
        (lambda t: t.assign(age=[[1.0]] * 40), "feature 'age': 'object'"),
        (lambda t: t.assign(age=[None, *t["age"][1:]]), "row 1, feature 'age': nan"),
        (lambda t: t.assign(visits=t["visits"].where(t.index != 3)), "row 4, feature 'visits'"),
        (lambda t: t.assign(ward=["north", None] * 20), "row 2, feature 'ward': ''"),
        (lambda t: t.head(0), "0 rows"),
    ],
)
def test_parquet_that_does_not_fit_is_refused_in_one_line(change, match, tmp_path):
    change(ROWS).to_parquet(tmp_path / "bad.parquet")
    refused(match, load_labelled, "bad.parquet", tmp_path, "outcome")


def test_what_is_neither_number_nor_text_may_stand_in_columns_that_are_not_used(tmp_path):
    odd = ROWS.assign(when=pd.Timestamp("2026"), scan=[[1.0]] * 40)
    odd.to_parquet(tmp_path / "odd.parquet")
    refused("feature 'when': 'datetime64", load_labelled, "odd.parquet", tmp_path, "outcome")
    choice = Choice(leave_out=("when", "scan"))
    held = load_labelled("odd.parquet", tmp_path, "outcome", choice=choice)
    ROWS.to_parquet(tmp_path / "plain.parquet")
    plain = load_labelled("plain.parquet", tmp_path, "outcome")
    assert held.layout == plain.layout and torch.equal(held.x, plain.x)
    site = load_labelled("odd.parquet", tmp_path, "outcome", layout=plain.layout)
    assert torch.equal(site.x, plain.x)
    assert set(read_rows(tmp_path / "odd.parquet", "outcome", plain.layout).unused) == {
        "when", "scan",
    }  # fmt: skip
    refused("target: 'datetime64", load, "odd.parquet", tmp_path, "when")


def test_files_that_are_no_parquet_and_a_missing_extra(tmp_path, monkeypatch):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    refused("bad.parquet: .*; expected a Parquet file", load, "bad.parquet", tmp_path, "y")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    refused(r"pip install 'fedbary\[parquet\]'", load, "bad.parquet", tmp_path, "z")


def test_a_site_s_parquet_without_a_column_of_the_federation_is_refused(folder):
    layout = load_labelled("t.csv", folder, "outcome").layout
    ROWS.drop(columns="ward").to_parquet(folder / "site.parquet")
    with pytest.raises(SettingError, match="the federation's columns; missing: ward"):
        load_labelled("site.parquet", folder, "outcome", layout=layout)
