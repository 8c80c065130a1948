"""A table's file that is no table gets a line that says what was wrong."""

import gzip
import re

import pytest
from refusals import refused

from fedbary.data.formats import _folder, csv
from fedbary.data.forms import source_of
from fedbary.data.readers import Reading


def read(format_, path):
    return format_.table(source_of(str(path)), Reading(path.parent, target="y"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b",,a,y\n1,2,3,4\n", "column 1: ''; expected a name in the header"),
        (b"a,b, a\n1,2,3\n", "column 'a': 'twice'; expected another name for each column"),
        ("a,é\n1,2\n".encode("latin-1"), "'other bytes'; expected a table of text in UTF-8"),
        ("a,y\n1,2\n".encode("utf-16-le"), "'other bytes'; expected a table of text in UTF-8"),
        (b"sep=;\na;y\n1;2\n", "the first line: 'sep=;'; expected the names of the columns there"),
        (gzip.compress(b"a,y\n" + b"1,2\n" * 99, mtime=0)[:-9], "expected a table, a line a row"),
    ],
)
def test_a_csv_file_that_is_none(content, said, tmp_path):
    path = tmp_path / ("t.csv.gz" if content.startswith(b"\x1f\x8b") else "t.csv")
    path.write_bytes(content)
    refused(re.escape(said), read, csv, path)


def test_names_may_be_quoted_and_begin_with_a_mark(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'\xef\xbb\xbf"a,b","a"\n1,2\n')
    assert list(read(csv, tmp_path / "t.csv").columns) == ["a,b", "a"]


def test_a_folder_that_holds_no_table(tmp_path):
    refused("'a folder without data.txt'; expected a table's file", read, _folder, tmp_path)
