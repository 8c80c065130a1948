"""Tables with classes: what is read, how it is coded, and what is refused."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from tables_added import added_to_tables

from fedbary.data.frame import frame
from fedbary.data.tables import Layout, load, load_labelled, names
from fedbary.data.tables._layout import MAX_CLASSES, encode, layout_of
from fedbary.errors import SettingError

CSV = "age,sex,outcome\n61,male,died\n45.5,female,lived\n7e1, male ,lived\n"


def written(tmp_path, text, name="mine.csv"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


# --- what is read ------------------------------------------------------------------------------


def test_breast_cancer_is_real_data_with_the_malignant_positive(tmp_path):
    table = load_labelled("breast_cancer", tmp_path)
    assert table.x.shape == (569, 30) and table.x.dtype == torch.float64
    assert table.layout.classes == ("benign", "malignant")
    assert torch.bincount(table.y).tolist() == [357, 212]
    radius = table.x[:, table.layout.features.index("mean radius")]
    assert radius[table.y == 1].mean() > 1.3 * radius[table.y == 0].mean()


def test_sets_are_known_by_what_they_can_be(tmp_path):
    assert "breast_cancer" in names("read_labelled") and "breast_cancer" not in names()
    assert "diabetes" in names() and "diabetes" not in names("read_labelled")
    with pytest.raises(SettingError, match="dataset: 'breast_cancer'.*diabetes"):
        load("breast_cancer", tmp_path)
    refused("dataset: 'diabetes'.*breast_cancer", load_labelled, "diabetes", tmp_path)


def test_new_set_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "coin.py").write_text(
        "import numpy as np\n"
        "from fedbary.data.frame import frame\n"
        "def read(data_dir):\n"
        "    return frame('coin', {'x': np.arange(4.)}, np.arange(4.))\n"
        "def read_labelled(data_dir):\n"
        "    return frame('coin', {'x': np.arange(4.)}, np.array(['head', 'tail'] * 2))\n"
    )
    added_to_tables(tmp_path, monkeypatch)
    assert load("coin", tmp_path).y.tolist() == [0, 1, 2, 3]
    assert load_labelled("coin", tmp_path).y.tolist() == [0, 1, 0, 1]
    sys.modules.pop("fedbary.data.tables.coin")


def test_text_becomes_a_feature_a_level(tmp_path):
    table = load_labelled(written(tmp_path, CSV), tmp_path, "outcome")
    assert table.layout.features == ("age", "sex=female", "sex=male")
    assert table.x.tolist() == [[61, 0, 1], [45.5, 1, 0], [70, 0, 1]]
    assert table.layout.classes == ("died", "lived") and table.y.tolist() == [0, 1, 1]


def test_named_classes_set_their_order(tmp_path):
    table = load_labelled(written(tmp_path, CSV), tmp_path, "outcome", ("lived", "moved", "died"))
    assert table.y.tolist() == [2, 0, 0]
    refused(
        "row 1, target: 'died'",
        load_labelled,
        written(tmp_path, CSV),
        tmp_path,
        "outcome",
        ("lived", "moved"),
    )


@pytest.mark.slow
@given(st.lists(st.integers(-5, 120), min_size=2, max_size=30).filter(lambda y: len(set(y)) > 1))
def test_whole_numbers_are_classes_by_size_however_they_are_written(y):
    x = {"x": np.arange(len(y))}
    expected = tuple(str(label) for label in sorted(set(y)))
    assert layout_of(frame("ints", x, np.array(y))).classes == expected
    assert layout_of(frame("floats", x, np.array(y, float))).classes == expected
    text = np.array([f"{label}.0" if i % 2 else f" {label}" for i, label in enumerate(y)], object)
    assert layout_of(frame("text", x, text)).classes == expected


def test_csv_npz_and_folder_give_one_table(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((6, 2)).round(3), np.array([0, 1, 2, 0, 1, 2])
    rows = "".join(f"{a} {b} {c}\n" for (a, b), c in zip(x, y, strict=True))
    csv = written(tmp_path, "0,1,y\n" + rows.replace(" ", ","))
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    folder = tmp_path / "uci"
    folder.mkdir()
    for name, text in (
        ("data", rows),
        ("index_features", "0\n1\n"),
        ("index_target", "2\n"),
        ("index_train_0", "0\n1\n2\n3\n"),
        ("index_test_0", "4\n5\n"),
    ):
        written(folder, text, f"{name}.txt")
    read = [load_labelled(path, tmp_path, "y") for path in (csv, "mine.npz", "uci")]
    for table in read:
        assert table.layout == read[0].layout and table.layout.classes == ("0", "1", "2")
        assert (table.x.numpy() == x).all() and table.y.tolist() == y.tolist()
    assert read[2].split(0).test.tolist() == [4, 5]


def test_npz_may_hold_text(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.array([["1", "a"], ["2", "b"]]), y=np.array(["no", "yes"]))
    table = load_labelled("t.npz", tmp_path)
    assert table.layout.features == ("0", "1=a", "1=b")
    assert table.x.tolist() == [[1, 1, 0], [2, 0, 1]] and table.layout.classes == ("no", "yes")


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.in_turn
@pytest.mark.parametrize("cell", ["", "NA", "NaN", "nan", "null", "?", "  ", "N/A"])
@pytest.mark.parametrize("column", ["age", "sex", "outcome"])
def test_a_missing_value_is_refused_by_row_and_column(cell, column, tmp_path):
    row = {"age": "61", "sex": "male", "outcome": "died", column: cell}
    path = written(tmp_path, CSV + ",".join(row.values()) + "\n")
    where = "target" if column == "outcome" else f"feature '{column}'"
    refused(
        f"row 4, {where}: .*fill the cell, or leave the row",
        load_labelled,
        path,
        tmp_path,
        "outcome",
    )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n3,4\n", "target: 'y'.* a, b"),
        ("a,y\n1,no\nred,yes\n", "row 2, feature 'a': 'red'.*finite number"),
        ("a,y\n1,no\ninf,yes\n", "row 2, feature 'a': 'inf'.*finite number"),
        ("a,y\n1,no\n3\n", "row 2, target: .*fill the cell"),
        ("a,b,y\n1,2,3,4\n5,6,7,8\n", "rows of more than 3 cells"),
        (",b,y\n0,2,no\n1,6,yes\n", "column 1: .*a name in the header"),
        ("a,y\n1,no\n2,no\n", "target: 'no in every row'.*2 to 100 classes"),
        ("a,y\n1,0.5\n2,1\n", "target: '0.5'.*task=regression"),
        ("y\nno\nyes\n", "2 rows, 0 features"),
        ("a,y\n", "0 rows, 1 features"),
        ("", "mine.csv: 'no line'; expected a table"),
    ],
)
def test_broken_csv_is_refused_in_a_line(text, match, tmp_path):
    refused(match, load_labelled, written(tmp_path, text), tmp_path, "y")


def test_a_price_is_no_class(tmp_path):
    rows = [f"{i % 7},{i}\n" for i in range(MAX_CLASSES + 1)]
    refused(
        "101 different values.*task=regression",
        load_labelled,
        written(tmp_path, "a,y\n" + "".join(rows), "prices.csv"),
        tmp_path,
        "y",
    )


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": np.ones((3, 2))}, "the arrays x, y or x_train"),
        ({"x": np.ones(3), "y": np.arange(3)}, r"features \(N, D\)"),
        ({"x": np.ones((3, 2)), "y": np.arange(2)}, r"features \(N, D\)"),
        ({"x": np.ones((3, 2), complex), "y": np.arange(3)}, r"features \(N, D\)"),
        ({"x": [[1, np.nan], [1, 2]], "y": [0, 1]}, "row 1, feature '1': nan.*fill the cell"),
        ({"x": [[1, 2], [1, 2]], "y": [0, np.nan]}, "row 2, target: nan.*fill the cell"),
        ({"x": np.ones((2, 2)), "y": [0, 1], "features": ["a", "a"]}, "features: 'a'"),
        ({"x": np.ones((2, 2)), "y": [0, 1], "features": "a"}, "features: 1; expected 2 names"),
        ({"x": np.array([{}, {}]), "y": [0, 1]}, "without pickled objects"),
    ],
)
def test_broken_npz_is_refused_in_a_line(arrays, match, tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays)
    refused(match, load_labelled, "mine.npz", tmp_path)


# --- a site's own data, by the federation's layout ----------------------------------------------

levels = st.lists(st.text(min_size=1, max_size=5), max_size=3, unique=True).map(tuple)
columns = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), levels), max_size=4, unique_by=lambda c: c[0]
)


@pytest.mark.slow
@given(columns.map(tuple), st.lists(st.text(min_size=1), min_size=2, max_size=3).map(tuple))
def test_a_layout_survives_its_journey(columns, classes):
    layout = Layout(columns, classes)
    assert Layout.from_config(layout.config()) == layout


def test_an_indicator_is_a_feature_after_all_others():
    filled = Layout((("age", ()), ("bmi", ())), (), "indicator", ("bmi",))
    assert Layout.from_config(filled.config()) == filled
    assert filled.features == ("age", "bmi", "bmi missing")


def test_a_site_is_coded_as_the_server_is(tmp_path):
    layout = load_labelled(written(tmp_path, CSV), tmp_path, "outcome").layout
    own = "outcome,sex,note,age\nlived,male,x,50\nlived,male,y,51\n"
    site = load_labelled(written(tmp_path, own, "own.csv"), tmp_path, "outcome", layout=layout)
    assert site.x.tolist() == [[50, 0, 1], [51, 0, 1]] and site.y.tolist() == [1, 1]
    assert site.layout is layout


@pytest.mark.parametrize(
    ("own", "match"),
    [
        ("age,outcome\n50,died\n", "columns: .*missing: sex"),
        ("age,sex,outcome\n50,1,died\n", "row 1, feature 'sex': '1'.*female, male"),
        ("age,sex,outcome\nold,male,died\n", "row 1, feature 'age': 'old'.*finite number"),
        ("age,sex,outcome\n50,male,moved\n", "row 1, target: 'moved'.*died, lived"),
    ],
)
def test_a_site_that_does_not_fit_is_refused(own, match, tmp_path):
    layout = load_labelled(written(tmp_path, CSV), tmp_path, "outcome").layout
    refused(
        match, load_labelled, written(tmp_path, own, "own.csv"), tmp_path, "outcome", layout=layout
    )


def test_a_site_s_rows_of_unknown_levels_are_left_out_and_counted(tmp_path):
    layout = load_labelled(written(tmp_path, CSV), tmp_path, "outcome").layout
    own = written(tmp_path, "age,sex,outcome\n50,x,lived\n51,male,died\n52,y,died\n", "own.csv")
    with pytest.warns(UserWarning, match=r"2 of 3 rows hold a level.*left out: sex \(2\)"):
        site = load_labelled(own, tmp_path, "outcome", layout=layout)
    assert site.x.tolist() == [[51, 0, 1]] and site.y.tolist() == [0]


# --- splits ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), min_size=4, max_size=80), st.integers(0, 5))
def test_every_class_of_two_rows_is_trained_on_and_tested(y, number):
    held = frame("rows", {"x": np.arange(len(y))}, np.array(y))
    table = encode(held, Layout((("x", ()),), ("0", "1", "2", "3")))
    counts = np.bincount(y)
    if counts.max() < 2:
        with pytest.raises(SettingError, match="two rows"):
            table.split(number)
        return
    split = table.split(number)
    assert sorted([*split.train.tolist(), *split.test.tolist()]) == list(range(len(y)))
    assert torch.equal(split.test, table.split(number).test)
    for label, count in enumerate(counts):
        tested = int((table.y[split.test] == label).sum())
        assert tested == (max(1, round(0.1 * count)) if count > 1 else 0)
    with pytest.raises(SettingError, match="split: -1"):
        table.split(-1)
