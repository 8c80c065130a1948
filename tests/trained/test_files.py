"""Tables that are opened in a spreadsheet hold no formulas, and give back what was written."""

import csv

from hypothesis import assume, example, given
from hypothesis import strategies as st

from fedbary.trained.writing import safe, write_table

FORMULA = tuple("=+-@\t\r\n")
TEXTS = st.text(st.sampled_from("=+-@'1.eE \t\r\nab\x1b"), max_size=6)


def back(cell):
    """Take an apostrophe away, as `safe` says."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell


@given(TEXTS)
def test_no_text_is_a_formula_and_each_can_be_had_back(text):
    (made,) = safe([text])
    try:
        float(made)
    except ValueError:
        assert not made.startswith(FORMULA)
    assert back(made) == back(text)
    assert list(safe([made])) == [made]


@example(["=c1", "-1", "c"])
@given(st.lists(TEXTS, min_size=1, max_size=4, unique=True))
def test_classes_of_any_name_come_back_from_a_table(tmp_path, names):
    assume(not any("\r" in name or back(name) != name for name in names))
    columns = {"class": names, **{name: [0.5] * len(names) for name in names}}
    write_table(tmp_path / "t.csv", columns)
    with open(tmp_path / "t.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert [back(name) for name in header] == list(columns)
    assert [back(row[0]) for row in rows] == names
