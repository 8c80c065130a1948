"""Tables that are opened in a spreadsheet hold no formulas, and give back what was written."""

import csv

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedbary.trained.files import safe, write_table

TEXTS = st.text(st.sampled_from("=+-@'1.eE \t\r\nab\x1b"), max_size=6)


def back(cell):
    """Take an apostrophe away, as `safe` says."""
    rest = cell.lstrip("'")
    return cell[1:] if cell.startswith("'") and rest[:1] in tuple("=+-@\t\r\n") else cell


@given(TEXTS)
def test_no_text_is_a_formula_and_each_can_be_had_back(text):
    made = safe(text)
    try:
        float(made)
    except ValueError:
        assert made[:1] not in tuple("=+-@\t\r\n")
    assert back(made) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(["=c1", "-1", "c"])
@given(st.lists(TEXTS.filter(lambda text: "\r" not in text), min_size=1, max_size=4, unique=True))
def test_classes_of_any_name_come_back_from_a_table(tmp_path, names):
    columns = {
        "class": names,
        **{name: [0.5] * len(names) for name in names},
        "n": [1] * len(names),
    }
    write_table(tmp_path / "t.csv", columns)
    with open(tmp_path / "t.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert [back(name) for name in header] == list(columns)
    assert [back(row[0]) for row in rows] == names
