"""Regression sets: the one in the package, files, folders, and what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from fedbary.data.tables import Choice, load
from fedbary.errors import SettingError

RNG = np.random.default_rng(0)


def write_uci(
    folder: Path, data: str, features="0\n1\n", target="2\n", splits=(("0\n1\n", "2\n"),)
):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.txt").write_text(data)
    (folder / "index_features.txt").write_text(features)
    (folder / "index_target.txt").write_text(target)
    for i, (train, test) in enumerate(splits):
        (folder / f"index_train_{i}.txt").write_text(train)
        (folder / f"index_test_{i}.txt").write_text(test)
    return str(folder)


# --- names and splits --------------------------------------------------------------------------


def test_diabetes_is_real_data_in_its_own_units(tmp_path):
    table = load("diabetes", tmp_path)
    assert table.x.shape == (442, 10) and table.y.shape == (442,)
    assert table.layout.features[:3] == ("age", "sex", "bmi")
    assert 40 < table.x[:, 0].mean() < 60 and 20 < table.x[:, 2].mean() < 30
    assert table.y.min() == 25 and table.y.max() == 346
    assert load("diabetes", str(tmp_path)) is table


def test_splits_that_none_prescribes_are_random_tenths(tmp_path):
    table = load("diabetes", tmp_path)
    tested = []
    for number in range(3):
        split = table.split(number)
        assert len(split.test) == 44
        assert sorted(torch.cat([split.train, split.test]).tolist()) == list(range(442))
        assert torch.equal(split.test, table.split(number).test)
        tested.append(set(split.test.tolist()))
    assert len(set.union(*tested)) > 100
    with pytest.raises(SettingError, match="split: -1"):
        table.split(-1)


@pytest.mark.parametrize("name", ["yacht", "", "_csv", "mine.txt", "none.csv", "none.npz"])
def test_unknown_name_says_what_is_taken(name, tmp_path):
    (tmp_path / "mine.txt").write_text("1 2\n")
    refused(r"dataset: .*diabetes, the path of a .csv", load, name, tmp_path)


# --- UCI folders -------------------------------------------------------------------------------


def test_uci_files_may_lie_in_a_subfolder(tmp_path):
    write_uci(tmp_path / "set" / "data", "1 2 3\n4 5 6\n7 8 9\n")
    assert len(load(str(tmp_path / "set"), tmp_path).y) == 3


def test_uci_folder_is_read_as_its_index_files_say(tmp_path):
    data = " 1.5 10 7e0\n2 20 8\n\n3\t30 9.25\n4 40 10\n"
    splits = (("3\n0\n", "1\n2\n"), ("1\n2\n", "0\n"))
    path = write_uci(tmp_path / "set", data, "2.0\n0.0\n", "1\n", splits)
    table = load(path, tmp_path)
    assert table.layout.features == ("2", "0")
    assert table.x.tolist() == [[7, 1.5], [8, 2], [9.25, 3], [10, 4]]
    assert table.y.tolist() == [10, 20, 30, 40]
    assert [(s.train.tolist(), s.test.tolist()) for s in table.splits] == [
        ([3, 0], [1, 2]),
        ([1, 2], [0]),
    ]
    with pytest.raises(SettingError, match="split: 2; expected.* 0 to 1"):
        table.split(2)
    assert torch.equal(load("set", tmp_path).x, table.x)


@pytest.mark.parametrize(
    ("broken", "match"),
    [
        ({"data": "1 2 3\n4 x 6\n7 8 9\n"}, "row 2, feature '1': 'x'; expected.* finite number"),
        ({"data": "1 2 3\n4 5 6\n7 8 nan\n"}, "row 3, target: nan"),
        ({"data": "1 2 3\n4 inf 6\n7 8 9\n"}, "row 2, feature '1': 'inf'"),
        ({"data": "1 2 3\n4 5\n7 8 9\n"}, "row 2, target"),
        ({"data": "1 2 3\n4 5 6 7\n7 8 9\n"}, "data.txt"),
        ({"data": ""}, "data.txt"),
        ({"data": "1 2 3\n4 5 3\n7 8 3\n"}, "the target is constant"),
        ({"data": "1 2 3\n1 2 4\n1 2 5\n"}, "every feature is constant"),
        ({"target": "3\n"}, "columns from 0 to 2"),
        ({"target": "1\n2\n"}, "columns from 0 to 2"),
        ({"features": "0.5\n"}, "index_features.txt: .*whole numbers"),
        ({"features": "a\n"}, "index_features.txt: .*whole numbers"),
        ({"splits": (("0\n1\n", "3\n"),)}, "split 0: .*whole numbers from 0 to 2"),
        ({"splits": (("0\n-1\n", "2\n"),)}, "split 0: .*whole numbers from 0 to 2"),
        ({"splits": (("0\n1\n", "1\n"),)}, "split 0: 'row 1 in both parts'"),
    ],
)
def test_broken_folder_is_refused_in_a_line(broken, match, tmp_path):
    path = write_uci(tmp_path / "set", **{"data": "1 2 3\n4 5 6\n7 8 9\n", **broken})
    refused(match, load, path, tmp_path)


@pytest.mark.parametrize("missing", ["data.txt", "index_target.txt", "index_test_0.txt"])
def test_folder_without_a_file_is_refused(missing, tmp_path):
    path = write_uci(tmp_path / "set", "1 2 3\n4 5 6\n7 8 9\n")
    (tmp_path / "set" / missing).unlink()
    refused(missing, load, path, tmp_path)


def test_constant_features_are_dropped_with_a_warning(tmp_path):
    path = write_uci(tmp_path / "set", "1 2 3\n1 5 6\n1 8 9\n")
    with pytest.warns(UserWarning, match="constant features are left out: 0$"):
        table = load(path, tmp_path)
    assert table.layout.features == ("1",) and table.x.tolist() == [[2], [5], [8]]


# --- CSV ---------------------------------------------------------------------------------------


def test_csv_with_a_named_target(tmp_path):
    (tmp_path / "mine.csv").write_text("a, price ,b\n1, 5,2\n3,6.5,-4e1\n")
    table = load("mine.csv", tmp_path, target="price ")
    assert table.layout.features == ("a", "b") and table.splits == ()
    assert table.x.tolist() == [[1, 2], [3, -40]] and table.y.tolist() == [5, 6.5]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,y\n1,NaN\n3,4\n", "row 1, target: 'NaN'"),
        ("a,y\n1,2\n", "1 rows, 1 features"),
        ("a,y\nred,old\nblue,new\n", "target: 'old'; expected a column of numbers; task=tables"),
    ],
)
def test_broken_csv_is_refused_in_a_line(text, match, tmp_path):
    (tmp_path / "mine.csv").write_text(text)
    refused(match, load, str(tmp_path / "mine.csv"), tmp_path, target="y")


# --- .npz --------------------------------------------------------------------------------------


def test_npz_with_and_without_a_split(tmp_path):
    x, y = RNG.random((5, 2)), RNG.random(5)
    np.savez(tmp_path / "whole.npz", x=x, y=y, features=["a", "b"])
    np.savez(tmp_path / "parts.npz", x_train=x[:3], y_train=y[:3], x_test=x[3:], y_test=y[3:])
    whole, parts = (load(f"{name}.npz", tmp_path) for name in ("whole", "parts"))
    assert whole.layout.features == ("a", "b") and parts.layout.features == ("0", "1")
    assert torch.equal(whole.x, parts.x) and torch.equal(whole.y, parts.y)
    assert (whole.x.numpy() == x).all() and not whole.splits
    (split,) = parts.splits
    assert (split.train.tolist(), split.test.tolist()) == ([0, 1, 2], [3, 4])


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": np.full((5, 2), "a"), "y": RNG.random(5)}, "every feature is constant"),
        (
            {
                "x_train": RNG.random((5, 2)),
                "y_train": RNG.random(5),
                "x_test": RNG.random((5, 3)),
                "y_test": RNG.random(5),
            },
            "parts of as many features",
        ),
    ],
)
def test_broken_npz_is_refused_in_a_line(arrays, match, tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays)
    refused(match, load, "mine.npz", tmp_path)


@pytest.mark.parametrize("empty", [[0], [1, 4], [6, 7]])
def test_a_table_without_its_rows_with_empty_cells_is_the_table_that_lacks_them(empty, tmp_path):
    held = pd.DataFrame({"u": np.arange(8.0), "who": [*"aabbccdd"], "y": np.arange(8.0) ** 2})
    held.loc[empty, "u"] = np.nan
    held.to_csv(tmp_path / "whole.csv", index=False)
    held.dropna().to_csv(tmp_path / "short.csv", index=False)
    choice = Choice(missing="drop", group="who")
    one, other = (
        load(str(tmp_path / f"{n}.csv"), "", "y", choice=choice) for n in ("whole", "short")
    )
    for name in ("x", "y", "groups"):
        assert torch.equal(getattr(one, name), getattr(other, name))
