"""Texts as strangers write them: what is read, what is cut, what is refused in one line."""

import time

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.frame import frame
from fedbary.data.tables import Choice, load_frame
from fedbary.data.text_rows import dataset_of, read_texts, text_examples
from fedbary.errors import CellError, SettingError


class Letters:
    """A tokeniser of letters: each is its number, ten of a text at most."""

    longest = 10

    def __call__(self, texts):
        tokens = torch.full((len(texts), self.longest), -1, dtype=torch.int32)
        for row, text in enumerate(texts):
            held = [ord(letter) for letter in text if not letter.isspace()][: self.longest]
            tokens[row, : len(held)] = torch.tensor(held, dtype=torch.int32)
        return tokens, sum(len(text) > self.longest for text in texts)

    def empty(self, tokens):
        return (tokens >= 0).sum(1) == 0

    def unknown(self, tokens):
        return 2 * (tokens > 127).sum(1) > (tokens >= 0).sum(1)


def table(texts, target=None):
    held = {"body": pandas.Series(texts, dtype=object)}
    return frame("mine.csv", held, target if target is not None else ["a", "b"] * (len(texts) // 2))


@pytest.mark.slow
@given(st.lists(st.text(max_size=15), min_size=4, max_size=12))
def test_any_texts_are_read_or_refused_without_one_of_them_in_the_line(texts):
    texts = [*texts, "word", "word"][: 2 * (len(texts) // 2 + 1)] + ["last", "last"]
    rows = read_texts(table(texts), "body", Letters())
    assert rows.x.shape == (len(texts), 10)
    assert len(texts) - 1 not in rows.unknown
    for note in rows.notes:
        ends = "cut", "to the backbone", f"row {1 + min(rows.unknown, default=-1)}"
        assert note.endswith(ends)


def test_control_characters_are_spaces():
    texts = ["a\x00b", "\x1b[31mc", "\x7fd", "e\x85f"]
    rows = read_texts(table(texts), "body", Letters())
    read = ["".join(chr(k) for k in row[row >= 0]) for row in rows.x]
    assert read == ["ab", "[31mc", "d", "ef"]


def test_empty_texts_are_left_out_and_counted():
    texts = ["one", None, "  ", "\x00", "two", "three", "four", "five"]
    rows = read_texts(table(texts), "body", Letters())
    assert rows.unknown == (1, 2, 3)
    assert rows.notes == ("3 of 8 texts are empty, the first in row 2",)
    held = dataset_of(rows)
    assert len(held.y_train) + len(held.y_test) == 5
    assert held.classes == ("a", "b")


def test_a_prescribed_split_is_kept():
    held = frame("x", {"body": list("pqrstu")}, list("ababab"), [(np.arange(4), np.arange(4, 6))])
    found = dataset_of(read_texts(held, "body", Letters(), ("b", "a")))
    assert (found.y_train.tolist(), found.y_test.tolist()) == ([1, 0, 1, 0], [1, 0])
    assert found.x_test[:, 0].tolist() == [ord("t"), ord("u")]


@pytest.mark.parametrize(
    ("texts", "said"),
    [([1.5, 2.5, 3, 4], "a column of texts"), (["", None, " ", ""], "not all empty")],
)
def test_a_column_without_texts_is_refused(texts, said):
    with pytest.raises(CellError) as refused:
        read_texts(table(texts), "body", Letters())
    assert said in str(refused.value) or said in refused.value.told


def test_a_missing_column_is_named_with_those_there_are(tmp_path):
    with pytest.raises(CellError, match="a column of mine.csv: body; perhaps body") as refused:
        read_texts(table(["one", "two"]), "bodi", Letters())
    assert refused.value.told == "1 columns; missing: bodi"


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_another_encoding_is_refused_in_words(encoding, tmp_path):
    (tmp_path / "a.csv").write_bytes("body,label\nschön,a\nnett,b\n".encode(encoding))
    with pytest.raises(SettingError, match="text in UTF-8"):
        load_frame(str(tmp_path / "a.csv"), tmp_path, "label", False)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_with_a_mark_are_read(encoding, tmp_path):
    (tmp_path / "a.csv").write_text("body,label\nschön,a\n素晴,b\n", encoding=encoding)
    rows = read_texts(
        load_frame(str(tmp_path / "a.csv"), tmp_path, "label", False), "body", Letters()
    )
    assert "".join(chr(k) for k in rows.x[1] if k >= 0) == "素晴"


@pytest.mark.slow
def test_ten_megabytes_in_a_cell_are_cut_within_seconds(tmp_path):
    pytest.importorskip("transformers")
    from own_texts import tokeniser

    from fedbary.backbones._transformers import Encoder

    begun, cell = time.process_time(), "a film " * 1_500_000
    (tmp_path / "a.csv").write_text(f"body,label\n{cell},a\n{'x' * 10**7},b\nfilm,a\n")
    held = load_frame(str(tmp_path / "a.csv"), tmp_path, "label", False)
    rows = read_texts(held, "body", Encoder(tokeniser(), 24))
    assert (rows.x[0] >= 0).all()
    assert rows.notes == (
        "2 of 3 texts are longer than 24 tokens and cut",
        "1 of 3 texts are mostly words unknown to the backbone",
    )
    assert time.process_time() - begun < 20


def test_a_parquet_file_is_read_as_the_csv_is(tmp_path):
    pytest.importorskip("pyarrow")
    held = pandas.DataFrame({"body": ["one", "two", None], "label": ["a", "b", "a"]})
    held.to_parquet(tmp_path / "a.parquet")
    found = text_examples(tmp_path / "a.parquet", "body", "label", Choice(), ("a", "b"), Letters())
    assert (found.y.tolist(), found.unknown) == ([0, 1, 0], (2,))
