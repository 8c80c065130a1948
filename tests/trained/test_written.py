"""What predictions are written to: a folder is whole or as it was, and nothing is lost."""

import os
import sys
from pathlib import Path

import pytest

from fedbary.errors import SettingError
from fedbary.trained import writing

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def forked(write):
    """How a fork of this process that writes ends."""
    child = os.fork()
    if not child:
        try:
            write()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("held", [{"scores.csv": "old", "mine.txt": "mine"}])
def test_a_folder_is_as_it_was_when_its_writer_is_cut_off_and_whole_thereafter(held, tmp_path):
    folder, foreign = tmp_path / "evaluation", tmp_path / "evaluation.partial"
    foreign.mkdir()
    for name, text in held.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    def found():
        return {file.name: file.read_text() for file in folder.glob("*")}

    def killed():
        with writing.written_whole(folder, force=True) as made:
            writing.write_text(made / "scores.csv", "new")
            os.kill(os.getpid(), 9)

    assert forked(killed) == -9
    assert found() == held
    with pytest.raises(KeyboardInterrupt), writing.written_whole(folder, True) as made:
        writing.write_text(made / "scores.csv", "new")
        raise KeyboardInterrupt
    assert found() == held
    with writing.written_whole(folder, force=True) as made:
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
    with writing.written_whole(Path("."), force=True) as made:
        writing.write_text(made / "scores.csv", "new")
    assert (tmp_path / "scores.csv").read_text() == "new"


@pytest.mark.slow
def test_predictions_are_whole_or_as_they_were_whenever_their_writer_is_killed(tmp_path):
    """Killed before its first step at its folder, its second, and so on."""
    file, ends, contents = tmp_path / "predictions.csv", [], set()

    def write():
        left = iter(range(len(ends)))

        def kill(event, arguments):
            if event.split(".")[0] in ("os", "open") and str(tmp_path) in str(arguments):
                if next(left, None) is None:
                    os.kill(os.getpid(), 9)

        sys.addaudithook(kill)
        writing.write_table(file, {"class": ["new"] * 1000})
        os._exit(0)

    while not ends or ends[-1]:
        file.write_text("old")
        ends.append(forked(write))
        contents.add(file.read_bytes())
    assert len(ends) > 3 and set(ends[:-1]) == {-9}
    assert len(contents) == 2  # as it was, and whole
