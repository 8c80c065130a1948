"""Where a run's results lie: each run has a folder that no other takes."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedbary.errors import SettingError
from fedbary.runs import location
from fedbary.runs.location import claimed_folder, require_startable
from fedbary.settings.config import resolve


@pytest.fixture(autouse=True)
def one_second(monkeypatch):
    monkeypatch.setattr("fedbary.runs.location.time.strftime", lambda form: "now")


def test_runs_that_begin_at_once_have_a_folder_each(tmp_path):
    settings = resolve({})
    with ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        claims = [claimed_folder(settings, tmp_path) for _ in range(8)]
        folders = list(pool.map(stack.enter_context, claims))
        assert len(set(folders)) == len(folders)
        for folder in folders:
            require_startable(folder, settings)
    assert not list(tmp_path.glob("runs/*"))


def test_a_folder_in_which_something_was_written_stays(tmp_path):
    with claimed_folder(resolve({}), tmp_path) as folder:
        (folder / "settings.yaml").touch()
    assert (folder / "settings.yaml").exists()
    with pytest.raises(SettingError, match="expected a folder that does not exist yet"):
        require_startable(folder, resolve({}))


@pytest.mark.parametrize("resume", ["none", "last"])
def test_a_folder_in_which_no_settings_were_written_holds_no_run(resume, tmp_path):
    settings = resolve({"output": str(tmp_path), "resume": resume})
    for name in sorted(location.BEFORE_SETTINGS):
        require_startable(tmp_path, settings)
        (tmp_path / name).touch()
    require_startable(tmp_path, settings)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(SettingError):
        require_startable(tmp_path, settings)


def test_a_folder_that_the_user_names_is_left_to_the_run(tmp_path):
    with claimed_folder(resolve({"output": "mine"}), tmp_path) as folder:
        assert folder == tmp_path.resolve() / "mine" and not folder.exists()


def test_a_place_where_no_folder_can_be_made_is_said_in_a_line(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(SettingError, match="output .*expected a folder that can be written"):
        with claimed_folder(resolve({}), tmp_path):
            pass
    assert location.run_folder(resolve({"output": "~/x"}), tmp_path) == Path.home() / "x"
