"""What `dataset=` and `backbone=` say is parsed to a value that loses nothing of it."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbary.data.forms import FUNCTION, PATH, backbone_of, elsewhere, endings, source_of
from fedbary.data.tables import Layout, read_rows
from fedbary.errors import SettingError


@pytest.mark.parametrize(
    ("text", "kind", "place", "part"),
    [
        ("digits", PATH, "digits", ""),
        ("./scans", PATH, "./scans", ""),
        ("a/b:c", PATH, "a/b:c", ""),
        ("T.CSV", "csv", "T.CSV", ""),
        ("t.csv.gz", "csv", "t.csv.gz", ""),
        ("t.tsv", "csv", "t.tsv", ""),
        ("a:b/t.npz", "npz", "a:b/t.npz", ""),
        ("t.parquet", "parquet", "t.parquet", ""),
        ("hf:owner/name:all", "hf", "owner/name", "all"),
        ("hf:./t.parquet", "hf", "./t.parquet", ""),
        ("torchvision:EMNIST:letters", "torchvision", "EMNIST", "letters"),
        ("my.module:read", FUNCTION, "my.module", "read"),
        ("csv:read", FUNCTION, "csv", "read"),
    ],
)
def test_a_text_has_a_kind_a_place_and_a_part(text, kind, place, part):
    source = source_of(text)
    assert (source.kind, source.place, source.part) == (kind, place, part)
    assert text.endswith(source.held)
    assert source.is_code == (kind == FUNCTION)


@given(st.text(st.sampled_from("ab/:.hf"), max_size=12))
def test_nothing_of_a_text_is_lost(text):
    source = source_of(text)
    assert source.text == text and text.rstrip(":").endswith(source.held.rstrip(":"))
    assert source.is_elsewhere or source.place == text
    assert not (source.is_path and source.is_elsewhere)


def test_what_is_here_becomes_absolute_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("own/folder")
    for name in ("t.csv", "plain", "KMNIST"):
        (tmp_path / name).touch()
    for name in ("t.csv", "./plain", "own/folder"):
        assert source_of(name).located() == str((tmp_path / name).resolve())
    assert source_of("hf:own/folder").located() == f"hf:{tmp_path.resolve()}/own/folder"
    for name in ("plain", "away.csv", "hf:away/name", "torchvision:KMNIST", "own.module:t"):
        assert source_of(name).located() == name


def test_errors_show_the_forms_of_what_reads_images_or_tables():
    assert elsewhere() == "hf:owner/name, torchvision:NAME, or package.module:function"
    assert elsewhere("table") == "hf:owner/name, or package.module:function"
    assert set(endings("table")) == {".csv", ".csv.gz", ".tsv", ".npz", ".parquet"}
    assert set(endings("images")) == {".npz"}


@pytest.mark.parametrize("text", ["timm:", "hf:", "resnet18", "", "a/b", "hf"])
def test_a_backbone_of_no_form_is_none(text):
    assert backbone_of(text) is None


def test_a_backbone_s_library_is_no_module_of_one_s_own():
    assert backbone_of("timm:resnet18").kind == "timm"
    assert backbone_of("hf:timm/a.b").held == "timm/a.b"
    assert backbone_of("own.module:make").is_code


@pytest.mark.parametrize("name", ["own_data:fails", "hf:t.csv", "torchvision:KMNIST", "t.txt"])
def test_a_file_called_as_a_function_or_a_library_is_no_table(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(name).touch()
    with pytest.raises(SettingError, match="data: .*the path of a .csv"):
        read_rows(Path(name), "", Layout((), ()))
