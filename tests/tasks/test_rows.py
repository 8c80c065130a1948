"""Tables at sites: columns by name, constant ones, and what the server is told of them."""

import contextlib
import string

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.client_app.discretion import discretion
from fedbary.data.sites import Site
from fedbary.errors import CellError
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

SERVER = "age,sex,bmi,out\n" + "".join(
    f"{20 + i},{i % 2},{18 + i / 3:.2f},{i * i}\n" for i in range(30)
)


def task(folder, **changes):
    (folder / "server.csv").write_text(SERVER)
    chosen = {"task": "regression", "dataset": str(folder / "server.csv"), "target": "out"}
    return task_of(resolve({**chosen, **changes}))


def site(folder, text, name="site.csv"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return Site("south", str(folder / name))


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("age,sex,bmi,out", "{age},{sex},{bmi},{out}"),
        ("sex,out,bmi,age", "{sex},{out},{bmi},{age}"),
        ("visit,age,sex,bmi,out", "never,{age},{sex},{bmi},{out}"),
        (" age , bmi,sex ,out", "{age},{bmi},{sex},{out}"),
        ("age,sex,bmi,out", "{age},1,{bmi},{out}"),
        ("age,sex,bmi,out", "{age},1,{bmi},7"),
    ],
)
def test_a_site_s_columns_are_found_by_name_and_may_be_constant(header, row, tmp_path):
    of = task(tmp_path)
    numbers = [{"age": 30 + i, "sex": i % 2, "bmi": 20 + i, "out": i} for i in range(8)]
    text = "\n".join([header, *(row.format(**cells) for cells in numbers)])
    shard = of.shard(site(tmp_path, text), of.signature())
    assert of.signature().features == ("age", "sex", "bmi")
    assert shard.x[:, 0].sort().values.tolist() == [30.0 + i for i in range(8)]
    assert torch.equal(shard.x[:, 2], shard.x[:, 0] - 10)


def test_a_regression_has_levels_and_a_row_of_an_unknown_one_is_left_out(tmp_path):
    rows = "".join(f"{'ab'[i % 2]},{i}\n" for i in range(12))
    (tmp_path / "wards.csv").write_text("ward,out\n" + rows)
    of = task(tmp_path, dataset=str(tmp_path / "wards.csv"))
    assert of.signature().features == ("ward=a", "ward=b")
    with pytest.warns(UserWarning, match=r"1 of 13 rows.*ward \(1\)"):
        shard = of.shard(site(tmp_path, f"ward,out\n{rows}c,3\n"), of.signature())
    assert len(shard.y) == 12


def test_a_line_says_what_a_table_holds_and_what_is_not_used(tmp_path):
    rows = "".join(f"{'ab'[i % 2]},{i % 7},{i * i}\n" for i in range(12))
    (tmp_path / "wards.csv").write_text("ward,age,out\n" + rows)
    of = task(tmp_path, dataset=str(tmp_path / "wards.csv"), missing="mean")
    said = "12 rows; 1 columns of numbers; levels: ward (2)"
    assert of.notes() == (f"{tmp_path / 'wards.csv'}: {said}",)
    held = site(tmp_path, "visit,out,age,ward\n" + "8,1,,a\n9,2,3,b\n")
    said = "2 rows; 1 columns of numbers; levels: ward (2); 1 rows with missing values; "
    assert of.site_notes(held, of.signature()) == (
        f"{tmp_path / 'site.csv'}: {said}not used: visit",
    )


# --- what is told --------------------------------------------------------------------------------

SECRET = st.text("ЖѪŁŒÞ☃", min_size=1, max_size=4)
"""Texts of letters that no message of ours holds."""
CELL = st.one_of(SECRET, st.sampled_from(["", "1", "2.5", "NA", '"', ";", "\t", "1,5", "inf"]))
ROWS = st.lists(st.lists(CELL, max_size=6).map(",".join), max_size=5).map("\n".join)
HEADER = st.one_of(SECRET, st.sampled_from(["age,sex,bmi,out", "age,sex", "out", ""]))
FILES = st.one_of(
    st.tuples(HEADER, ROWS).map("\n".join).map(str.encode),
    st.tuples(HEADER, ROWS).map("\n".join).map(lambda text: text.encode("utf-16")),
    st.binary(max_size=50).map(lambda held: "Ж".encode() + held),
)


@pytest.mark.slow
@given(FILES, st.sampled_from(["csv", "csv.gz", "tsv", "npz", "txt"]))
def test_nothing_that_a_site_s_table_holds_is_told_to_the_server(tmp_path, held, ending):
    of = task(tmp_path)
    where = site(tmp_path, held, f"Ж{hash(held)}.{ending}")  # a name of its own: files are cached

    class Node:
        node_config = {"data-path": where.data_path}

    def shard(message, context):
        with contextlib.suppress(UserWarning):
            of.shard(where, of.signature())

    try:
        discretion(None, Node, shard)
    except ValueError as error:
        told = str(error)
        assert set(told) <= set(string.ascii_letters + string.digits + " ;:,.'")
        assert type(error) is ValueError and len(told) < 100


def test_the_server_is_told_how_many_columns_there_are_and_which_of_its_own_are_missing(tmp_path):
    of = task(tmp_path)
    with pytest.raises(CellError) as caught:
        of.shard(site(tmp_path, "age,Smith-1943,out\n1,2,3\n"), of.signature())
    assert caught.value.told == "2 columns; missing: sex, bmi"
    with pytest.raises(CellError) as caught:
        of.shard(site(tmp_path, "Smith-1943,m,1\nJones,f,2\n", "other.csv"), of.signature())
    assert caught.value.told == "3 columns; missing: out"
    assert "Smith" in str(caught.value)
