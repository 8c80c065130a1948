"""What predictions are written to: a folder is whole or as it was, and nothing is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedbary.errors import SettingError
from fedbary.trained import writing

KILLED = """
import os, pathlib, sys
from fedbary.trained.writing import write_text, written_whole
with written_whole(pathlib.Path(sys.argv[1])) as made:
    write_text(made / "scores.csv", "new")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("held", [{}, {"scores.csv": "old", "mine.txt": "mine"}])
def test_a_folder_is_as_it_was_when_its_writer_is_cut_off_and_whole_thereafter(held, tmp_path):
    folder, foreign = tmp_path / "evaluation", tmp_path / "evaluation.partial"
    foreign.mkdir()
    for name, text in held.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    def found():
        return {file.name: file.read_text() for file in folder.glob("*")}

    command = [sys.executable, "-c", KILLED, folder]
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == -9
    assert found() == held
    with pytest.raises(KeyboardInterrupt), writing.written_whole(folder) as made:
        writing.write_text(made / "scores.csv", "new")
        raise KeyboardInterrupt
    assert found() == held
    with writing.written_whole(folder) as made:
        writing.write_text(made / "scores.csv", "new")
        writing.write_text(made / "sure.txt", "new")
    assert found() == held | {"scores.csv": "new", "sure.txt": "new"}
    assert set(tmp_path.iterdir()) == {folder, foreign}


@pytest.mark.parametrize("output", [".", "there", "picture.png"])
def test_a_table_is_not_written_over_its_picture_nor_to_a_folder(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(SettingError, match="output: .*; expected the file of a table"):
        writing.picture_beside(Path(output))
    assert writing.picture_beside(Path("a.csv")) == Path("a.png")


def test_the_folder_of_now_is_filled_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with writing.written_whole(Path(".")) as made:
        writing.write_text(made / "scores.csv", "new")
    assert (tmp_path / "scores.csv").read_text() == "new"
