"""What a class, a level, a column and a number is, the same in every format."""

import unicodedata
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from fedbary.data.frame import frame, frame_of
from fedbary.data.tables import Choice, load, load_labelled, read_rows
from fedbary.data.tables._layout import MAX_LEVELS, layout_of
from fedbary.errors import SettingError
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.texts import listed, names_in

FORMATS = ("csv", "csv.gz", "tsv", "parquet", "npz")


def write(folder, name, columns):
    """Write a table in a format; of an npz the last column is y."""
    held = pd.DataFrame(columns)
    path = folder / name
    if name.endswith("parquet"):
        held.to_parquet(path)
    elif name.endswith("npz"):
        names = list(columns)[:-1]
        x = np.array([held[column].astype(str) for column in names]).T
        y = held.iloc[:, -1].to_numpy()
        y = y.astype(str) if y.dtype == object else y
        np.savez(path, x=x.astype(str), y=y, features=names)
    else:
        held.to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
    return str(path)


CLASSES = [
    ("1E1", "10", "B2"),
    ("007", "7", "12"),
    ("1_0", "10", "x"),
    ("10000000000000001", "10000000000000000", "20000000000000000"),
    ("+1", "1", "-1"),
    ("１", "1", "2"),
    ("0x1A", "26", "1a"),
    ("Infinity", "inf", "x"),
]


@pytest.mark.in_turn
@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("classes", CLASSES)
def test_a_class_is_its_text(classes, ending, tmp_path):
    y = np.array(classes * 4)
    path = write(tmp_path, f"t.{ending}", {"x": np.arange(len(y)), "y": y})
    held = load_labelled(path, tmp_path, "y")
    assert set(held.layout.classes) == set(classes)
    assert [held.layout.classes[label] for label in held.y] == y.tolist()
    assert read_rows(tmp_path / f"t.{ending}", "y", held.layout).y.tolist() == held.y.tolist()


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* differ in case or blanks alone")
@given(
    st.lists(
        names.filter(lambda n: n.casefold() not in {"na", "nan", "null", "?"}),
        min_size=2,
        max_size=6,
        unique_by=lambda n: unicodedata.normalize("NFC", n),
    )
)
def test_different_texts_are_different_classes_and_levels_whatever_their_order(found):
    plain = [unicodedata.normalize("NFC", name) for name in found]
    kept = [n for n in plain if not n.endswith(".0") and n.casefold() not in ("true", "false")]
    rows = np.array(kept * 3, dtype=object)
    try:
        layout = layout_of(frame("t", {"a": np.arange(len(rows))}, rows))
    except SettingError:  # one class alone, or a number with a fraction
        return
    assert sorted(layout.classes) == sorted(set(kept))


def test_whole_numbers_beyond_a_float_are_told_apart_in_every_type(tmp_path):
    large = np.array([10**16 + 1, 10**16, 2 * 10**16] * 3)
    for ending in FORMATS:
        path = write(tmp_path, f"l.{ending}", {"x": np.arange(9), "y": large})
        classes = load_labelled(path, tmp_path, "y").layout.classes
        assert classes == tuple(map(str, sorted(set(large.tolist()))))


def test_booleans_are_one_in_every_format_and_beside_0_and_1(tmp_path):
    flags = np.array([True, False, False, True] * 5)
    table = {"smoker": flags, "age": np.arange(20), "ill": flags[::-1]}
    held = {
        end: load_labelled(write(tmp_path, f"b.{end}", table), tmp_path, "ill") for end in FORMATS
    }
    for other in held.values():
        assert other.layout.classes == ("False", "True")
        assert other.layout == held["csv"].layout
        assert (
            other.x.tolist()
            == held["csv"].x.tolist()
            == [[float(a), b] for a, b in zip(flags, range(20), strict=True)]
        )
    site = {**table, "smoker": flags.astype(int), "ill": flags[::-1].astype(int)}
    path = write(tmp_path, "site.csv", site)
    site = load_labelled(path, tmp_path, "ill", layout=held["parquet"].layout)
    assert site.y.tolist() == held["csv"].y.tolist() and (site.x == held["csv"].x).all()
    upper = tmp_path / "upper.csv"
    upper.write_text("smoker,age,ill\n" + "TRUE,1,FALSE\nFALSE,2,TRUE\n" * 3)
    site = load_labelled(str(upper), tmp_path, "ill", layout=held["parquet"].layout)
    assert site.y.tolist() == [0, 1] * 3 and site.x[:, 0].tolist() == [1, 0] * 3


def test_named_classes_keep_their_order(tmp_path):
    kinds = datasets.Features(
        {"a": datasets.Value("int64"), "y": datasets.ClassLabel(names=["well", "ill"])}
    )
    rows = {"a": list(range(6)), "y": [0, 1, 0, 1, 1, 0]}
    datasets.Dataset.from_dict(rows, features=kinds).save_to_disk(tmp_path / "d")
    held = load_labelled("hf:d", tmp_path, "y")
    assert held.layout.classes == ("well", "ill") and held.y.tolist() == rows["y"]
    ordered = pd.Categorical(["mild", "severe", "none"] * 2, ["none", "mild", "severe", "unused"])
    pd.DataFrame({"a": range(6), "y": ordered}).to_parquet(tmp_path / "c.parquet")
    classes = load_labelled("c.parquet", tmp_path, "y").layout.classes
    assert classes == ("none", "mild", "severe")


def test_unicode_has_one_form(tmp_path):
    one, other = (unicodedata.normalize(form, "Bär") for form in ("NFC", "NFD"))
    assert one != other
    for name, text in (("one", one), ("other", other)):
        rows = f"{text},Kuh\n1,2\n".splitlines()
        (tmp_path / f"{name}.csv").write_text(
            f"{rows[0]},y\n" + f"{text},1,{text}\nKuh,2,Kuh\n" * 3, encoding="utf-8"
        )
    first = load_labelled("one.csv", tmp_path, "y")
    second = load_labelled("other.csv", tmp_path, "y", layout=first.layout)
    assert first.layout.classes == (one, "Kuh") and (first.x == second.x).all()


CODES = [["007", "7", "012"], ["1E2", "2E3", "3E1"], ["12345678901234567", "12345678901234568"]]


@pytest.mark.parametrize("codes", CODES)
def test_codes_are_no_numbers(codes, tmp_path):
    cells = codes * 6
    path = write(tmp_path, "c.csv", {"code": cells, "y": list("ab") * (len(cells) // 2)})
    assert len(load_labelled(path, tmp_path, "y").layout.features) == len(codes)


DISGUISED = [
    [f"{i // 10},{i % 10}" for i in range(50)],
    [f"{i},{i + 100:03}.74" for i in range(1, 41)],
    [f"{i},{i + 100:03}" for i in range(-20, 20)],
    [f"{i}.{i + 100}.000" for i in range(1, 41)],
    [f"{i}%" for i in range(30)],
    [f"{i / 2} %" for i in range(30)],
    [f"${i}" for i in range(30)],
    [f"{i} €" for i in range(30)],
    [f"1 {i:03}" for i in range(30)],
    [f"2024-01-{i:02}" for i in range(1, 29)],
    [f"{i}.3.2024" for i in range(1, 29)],
    [f"3/{i}/24 10:00" for i in range(1, 29)],
    [f"Jan {i}, 2024" for i in range(1, 29)],
    [f"{i}-Feb-24" for i in range(1, 29)],
    [f"{i}:30" for i in range(12)],
    [f"\u2212{i}" for i in range(1, 13)],
    [f"({i}.5)" for i in range(1, 13)],
    [f"{i}_000" for i in range(1, 13)],
    [f"0x{i:x}" for i in range(1, 13)],
    [chr(0xFF11 + i) + "\uff10" for i in range(9)],
]


@pytest.mark.in_turn
@pytest.mark.parametrize("cells", DISGUISED)
@pytest.mark.parametrize("task", ["tables", "regression"])
@pytest.mark.parametrize("repeats", [1, 5])
def test_text_that_is_numbers_or_dates_to_people_is_refused_by_name(cells, task, repeats, tmp_path):
    table = {"dose": cells * repeats, "y": [i % 2 for i in range(len(cells) * repeats)]}
    path = write(tmp_path, "d.csv", table)
    with pytest.raises(SettingError, match="feature 'dose': .*expected a number"):
        (load_labelled if task == "tables" else load)(path, tmp_path, "y")


@pytest.mark.parametrize(("levels", "rows"), [(12, 12), (MAX_LEVELS + 1, 200)])
def test_names_and_notes_are_no_levels(levels, rows, tmp_path):
    who = [f"P{i % levels}" for i in range(rows)]
    path = write(tmp_path, "n.csv", {"who": who, "y": list("ab") * (rows // 2)})
    refused(f"feature 'who': '{levels} texts'.*id=who", load_labelled, path, tmp_path, "y")


def test_a_target_in_disguise_is_refused_with_what_is_taken(tmp_path):
    path = write(tmp_path, "t.csv", {"a": range(12), "y": [f"{i},{i}5" for i in range(12)]})
    for load_it in (load, load_labelled):
        refused("target: '.,.5'; expected a number such as", load_it, path, tmp_path, "y")


def test_a_target_whose_differences_are_rounded_off_is_refused(tmp_path):
    for start, fits in ((17 * 10**8, True), (10**17, False)):
        path = write(tmp_path, "t.csv", {"a": range(12), "y": [start + i for i in range(12)]})
        if fits:
            assert load(path, tmp_path, "y").y.diff().tolist() == [1.0] * 11
            continue
        refused("target: '10+'; .*subtract a constant", load, path, tmp_path, "y")


@pytest.mark.parametrize(
    ("cells", "unit"),
    [
        (["5 kg", "6 kg", "7.5 kg"], "kg"),
        (["120/80", "131/90", "99/70"], "/"),
        (["2024-W01", "2024-W12", "2025-W02"], "-W"),
        (["Q1 2024", "Q2 2024", "Q1 2025"], "Q"),
    ],
)
def test_numbers_with_a_unit_are_said_to_be_levels(cells, unit, tmp_path):
    path = write(tmp_path, "u.csv", {"mass": cells * 4, "y": list("ab") * 6})
    with pytest.warns(UserWarning, match=f"'mass': numbers with '{unit}' are taken as 3 levels"):
        load_labelled(path, tmp_path, "y")


def test_half_a_character_is_refused_by_row_or_column():
    def table(name="a", a=("u", "v"), y=("w", "z")):
        cells = [pd.Series([*held] * 9, dtype=object) for held in (a, y)]
        return pd.concat(cells, axis=1).set_axis(pd.Index([name, "y"], dtype=object), axis=1)

    for held, said in (
        (table(a=("u", "v\ud800")), r"feature 'a': 'half a character .* in row 2'"),
        (table(y=("w\udcff", "z")), r"target: 'half a character .* in row 1'"),
        (table("\ude00"), r"column 1: .*\\ude00"),
    ):
        with pytest.raises(SettingError, match=said):
            layout_of(frame_of("made", held, "y"))


def test_a_header_in_the_midst_of_rows_is_no_row(tmp_path):
    (tmp_path / "h.csv").write_text("a,y\nu,v\nw,z\n a,y\nu,z\n")
    refused("row 3: 'the header again'", load_labelled, "h.csv", tmp_path, "y")


def test_hidden_labels_in_an_npz_do_not_test(tmp_path):
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    np.savez(tmp_path / "h.npz", x_train=x, y_train=y, x_test=x[:4], y_test=np.full(4, -1))
    with pytest.warns(UserWarning, match="y_test has no labels"):
        held = load_labelled("h.npz", tmp_path)
    assert held.layout.classes == ("0", "1") and len(held.y) == 20 and not held.splits


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [("patient_id", 20, True), ("Nr", 20, True), ("age", 20, False), ("visit", 50, True)],
)
def test_a_column_that_numbers_the_rows_is_said(name, rows, said, tmp_path, recwarn):
    numbers = np.random.default_rng(0).permutation(np.arange(30, 30 + rows))
    path = write(tmp_path, "r.csv", {name: numbers, "y": list("ab") * (rows // 2)})
    load_labelled(path, tmp_path, "y")
    found = [str(w.message) for w in recwarn.list]
    assert [f"{name!r}: another number in each row" in text for text in found] == [True] * said


@pytest.mark.parametrize("load_it", [load, load_labelled])
def test_a_target_in_another_case_is_suggested(load_it, tmp_path):
    path = write(tmp_path, "s.csv", {"Age": [1, 2], "Outcome": [1, 2]})
    refused("target: 'outcome'.*; perhaps Outcome", load_it, path, tmp_path, "outcome")


def test_names_that_differ_in_case_or_blanks_alone_are_said(tmp_path):
    table = {"sex": ["male", "Male", "fe male", "female"] * 4, "y": list("ab") * 8}
    path = write(tmp_path, "g.csv", table)
    with pytest.warns(UserWarning) as said:
        load_labelled(path, tmp_path, "y")
    assert {str(w.message).split(": ", 1)[1] for w in said} == {
        "feature 'sex': 'Male' and 'male' differ in case or blanks alone, and are told apart",
        "feature 'sex': 'fe male' and 'female' differ in case or blanks alone, and are told apart",
    }


@pytest.mark.parametrize("name", ["T.CSV", "t.tsv", "t.Csv.Gz", "t.PARQUET", "semi.csv"])
def test_endings_separators_and_blanks_in_a_header(name, tmp_path):
    table = {" age": [1.5, 2.0, 3.0], "sex ": ["a", "b", "a"], " out ": ["x", "y", "x"]}
    if name == "semi.csv":
        pd.DataFrame(table).to_csv(tmp_path / name, index=False, sep=";")
    else:
        (write(tmp_path, name.lower(), table))
        (tmp_path / name.lower()).rename(tmp_path / name)
    held = load_labelled(name, tmp_path, "out")
    assert held.layout.features == ("age", "sex=a", "sex=b") and held.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_name_may_hold_the_comma_that_separates_elsewhere(mark, tmp_path):
    header = mark.join(["age, years", "sex", "out"])
    (tmp_path / "c.csv").write_text(f"{header}\n" + "1,2,3\n4,5,6\n".replace(",", mark))
    assert load_labelled("c.csv", tmp_path, "out").layout.features == ("age, years", "sex")
    (tmp_path / "q.csv").write_text('"a;b;c",out\n1,2\n4,5\n')
    assert load_labelled("q.csv", tmp_path, "out").layout.features == ("a;b;c",)


def test_a_column_and_a_class_whose_name_has_a_comma_can_be_named(tmp_path):
    header, rows = '"age, years",b,out', '1,2,"ill, severe"\n4,5,well\n7,5,well\n'
    (tmp_path / "c.csv").write_text(f"{header}\n{rows}")

    def signature(**changes):
        about = {"task": "tables", "dataset": str(tmp_path / "c.csv"), "target": "out"}
        return task_of(resolve({**about, **changes})).signature()

    assert signature(columns='"age, years"').features == ("age, years",)
    assert signature(leave_out='"age, years"').features == ("b",)
    assert signature(classes='well,"ill, severe"').classes == ("well", "ill, severe")
    refused(r'columns: .age.; .*"age, years", b$', signature, columns="age")
    refused("expected well, worse, which", signature, classes="well,worse")


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), min_size=1))
def test_names_in_a_line_are_read_as_they_were_listed(found):
    assert names_in(listed(found)) == names_in(listed(found, ",")) == found


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_names_of_rows_are_kept_as_they_are_written(ending, tmp_path):
    ids = ["TRUE", "true", "True", "1.0", "1", "007", "NA", ""]
    table = {"id": ids, "a": np.arange(8.0), "y": list("abababab")}
    path = tmp_path / Path(write(tmp_path, f"t.{ending}", table)).name
    layout = load_labelled(str(path), tmp_path, "y", choice=Choice(id="id")).layout
    found = read_rows(path, "y", layout, Choice(id="id"))
    assert found.columns["id"].tolist() == ids and not found.unused
    numbers = {**table, "id": [1001.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, np.nan]}
    write(tmp_path, "n.parquet", numbers)
    held = read_rows(tmp_path / "n.parquet", "y", layout, Choice(id="id")).columns["id"].tolist()
    assert held == ["1001", "2", "3", "4", "5", "6", "7", ""]


def test_a_column_of_names_that_is_not_there_is_refused_with_the_nearest(tmp_path):
    path = write(tmp_path, "t.csv", {"Patient": [1, 1, 2, 2], "a": [1, 2, 3, 4], "y": list("abab")})
    with pytest.raises(SettingError, match="id: 'patient'; .*Patient, a; perhaps Patient"):
        load_labelled(path, tmp_path, "y", choice=Choice(id="patient"))


def test_utf_16_with_its_mark_is_read(tmp_path):
    for encoding in ("utf-16", "utf-8-sig"):
        (tmp_path / f"{encoding}.csv").write_bytes("ä,y\n1,a\n2,b\n".encode(encoding))
        assert load_labelled(f"{encoding}.csv", tmp_path, "y").layout.features == ("ä",)


def test_na_as_a_word_is_named_as_the_trap(tmp_path):
    path = write(tmp_path, "na.csv", {"country": ["DE", "NA", "KE"], "y": list("aba")})
    with pytest.raises(SettingError, match="row 2, feature 'country': 'NA'.*if NA is a word here"):
        load_labelled(path, tmp_path, "y")
