"""YAML and words in which people write settings: names stay as they are written."""

import re
import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedbary.errors import SettingError
from fedbary.settings.config import read_yaml, resolve
from fedbary.settings.run_config import _without_comments, resolve_run_config


def read(folder, text):
    file = folder / "mine.yaml"
    file.write_text(text)
    return resolve({}, file)


@pytest.mark.parametrize(
    ("written", "setting", "value"),
    [
        ("classes: [cat, dog]", "classes", "cat,dog"),
        ("classes: [no, yes, on]", "classes", "no,yes,on"),
        ("classes: [007, 7]", "classes", "007,7"),
        ("classes: ['a,b', c]", "classes", '"a,b",c'),
        ("classes: [2024-01-01, 12:30]", "classes", "2024-01-01,12:30"),
        ("classes:\n  - b\n  - a\n", "classes", "b,a"),
        ("classes: 3", "classes", "3"),
        ("seed: 010", "seed", 10),
        ("seed: 10", "seed", 10),
        ("lr: 1e-3", "lr", 0.001),
        ("lr: .5", "lr", 0.5),
        ("download: no", "download", False),
        ("pictures: True", "pictures", True),
    ],
)
def test_what_is_written_is_what_is_read(written, setting, value, tmp_path):
    assert getattr(read(tmp_path, written), setting) == value


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("rounds: 3\nseed: 1\nrounds: 4\n", "'rounds' stands twice"),
        ("protocols: {a: {lr: 1, lr: 2}}", "'lr' stands twice"),
        ("classes: [true, false]", "classes: True; expected names; put quotes"),
        ("classes: [a, a]", "different names"),
        ("classes: [a, [b]]", "put quotes"),
        ("seed: 0x10", "seed: '0x10'"),
        ("rounds: 12:30", "rounds: '12:30'"),
    ],
)
def test_what_could_mean_two_things_is_refused(written, said, tmp_path):
    with pytest.raises(SettingError, match=said):
        read(tmp_path, written)


TEXT = st.text(st.characters(max_codepoint=0x2FF, exclude_categories=["C", "Z"]), min_size=1)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES |= st.sampled_from(["on", "no", "010", "0x10", "1_0", "12:30", "2024-01-01", "1e3", "~"])


@given(st.dictionaries(TEXT, VALUES | st.lists(VALUES), max_size=4))
def test_what_is_dumped_is_read_as_it_was(tmp_path, held):
    file = tmp_path / "f.yaml"
    file.write_text(yaml.safe_dump(held, allow_unicode=True))
    assert read_yaml(file) == held


def test_a_merged_block_may_be_written_over(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text("a: &a {lr: 1, seed: 2}\nb:\n  <<: *a\n  lr: 3\n")
    assert read_yaml(file)["b"] == {"lr": 3, "seed": 2}


# --- words of a run config -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("target=lesion#2", "lesion#2"),
        ("target=lesion#2 # the second", "lesion#2"),
        ("# first\ntarget=a#", "a#"),
        ("target='a #b'", "a #b"),
        ('target="a #b"#c', "a #b#c"),
        ("target=a\t#b c=d", "a"),
    ],
)
def test_a_hash_within_a_word_is_no_comment(words, target):
    assert resolve_run_config({"settings": f"task=tables {words}"}).target == target


@given(st.lists(st.text(min_size=1)))
def test_quoted_words_come_back_whatever_they_hold(words):
    assert shlex.split(_without_comments(shlex.join(words))) == words


@given(st.lists(st.from_regex(r"[a-z=#.]+", fullmatch=True)))
def test_plain_words_come_back_up_to_one_that_begins_with_a_hash(words):
    begun = [i for i, word in enumerate(words) if word.startswith("#")]
    kept = words[: begun[0]] if begun else words
    assert re.split(r"\s+", _without_comments(" ".join(words)).strip()) == (kept or [""])
