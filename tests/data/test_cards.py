"""For a Hugging Face folder that is here nothing is fetched, whatever its card says."""

import socket

import pytest
import yaml

from fedbary.data.forms import source_of
from fedbary.data.readers import Reading
from fedbary.data.sources.hf import load_hub
from fedbary.errors import SettingError

ELSEWHERE = (
    "https://example.org/x.parquet", "hf://datasets/o/n/x.parquet", "zip://x.csv::http://e.org/a",
    "s3://bucket/x.parquet", "file:///etc/x.csv", "/etc/x.csv", "../x.csv", "a/../../x.csv",
)  # fmt: skip
FORMS = {
    "text": lambda place: {"data_files": place},
    "list": lambda place: {"data_files": ["x.parquet", place]},
    "splits": lambda place: {"data_files": [{"split": "train", "path": ["x.parquet", place]}]},
    "folder": lambda place: {"data_dir": place},
}


@pytest.fixture
def folder(tmp_path):
    import pandas

    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "label": ["x", "y", "x"]})
    (tmp_path / "set").mkdir()
    frame.to_parquet(tmp_path / "set" / "x.parquet")
    return tmp_path / "set"


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """Fail where anybody asks for an address."""

    def asked(*args, **kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    monkeypatch.setattr(socket.socket, "connect", asked)


def write(folder, file, configuration):
    text = yaml.safe_dump({"license_link": "https://example.org", "configs": [configuration]})
    card = f"---\n{text}---\n# See https://example.org\n" if file == "README.md" else text
    (folder / file).write_text(card)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ELSEWHERE)
def test_data_elsewhere_are_refused_before_anything_is_read(file, form, place, folder, tmp_path):
    write(folder, file, {"config_name": "default", **FORMS[form](place)})
    with pytest.raises(SettingError, match="not in the folder"):
        load_hub(source_of(f"hf:{folder}"), Reading(tmp_path))


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
def test_data_in_the_folder_are_read(file, folder, tmp_path):
    write(folder, file, {"config_name": "default", "data_files": "x.parquet"})
    assert len(load_hub(source_of(f"hf:{folder}"), Reading(tmp_path))[0]) == 3
