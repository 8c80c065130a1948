"""What a run sends to the server and to the sites, and what is published: the code alone."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files

from fedbary.commands.cli import main
from fedbary.launching.app import write_app
from fedbary.strategies.internals import NEWEST_TESTED

ROOT = Path(__file__).resolve().parents[2]
FLWR = str(Path(sys.executable).parent / "flwr")
CODE = ("fedbary", "strategies", "client_app", "server_app")
FILES = ("simulation.yaml", "README.md", "LICENSE", "pyproject.toml")
PRIVATE = (
    "federation/keys/ca.json", "federation/state.yaml", "federation/run.toml", "federation/a.py",
    "federation/sites/0/notes.md", "keys/north.toml", "tests/helper.py", "findings/best/runs.csv",
    "examples/data.json", "runs/x/settings.yaml", "secret.yaml", "notes.md",
)  # fmt: skip


def code():
    return {f.relative_to(ROOT).as_posix() for part in CODE for f in (ROOT / part).rglob("*.py")}


def clone(folder):
    for part in CODE:
        shutil.copytree(ROOT / part, folder / part)
    for part in (*FILES, ".gitignore"):
        shutil.copy(ROOT / part, folder)
    return folder


@pytest.fixture(params=[clone, write_app])
def used(request, tmp_path):
    """A clone, or an app of its own, beside whose code other things lie."""
    folder = request.param(tmp_path / "my-app")
    for part in PRIVATE:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text("{}")
    return folder


def test_nothing_but_code_is_sent(used, tmp_path):
    (built := tmp_path / "built").mkdir()
    subprocess.run([FLWR, "build", "--app", str(used)], cwd=built, check=True, timeout=120)
    (bundle,) = built.glob("*.fab")
    with zipfile.ZipFile(bundle) as sent:
        names = set(sent.namelist())
    assert {name.split("/")[0] for name in names} == {*CODE, *FILES, ".info"}
    assert code() <= names
    assert {name for name in names if "/" in name and not name.startswith(".info")} <= code()


@pytest.fixture
def app(tmp_path):
    return write_app(tmp_path / "my-app")


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_would_publish_the_app_and_nothing_beside_it(app):
    """These are the checks of `flwr app publish` before it sends anything."""
    for part in PRIVATE:
        (app / part).parent.mkdir(parents=True, exist_ok=True)
        (app / part).write_text("{}")
    publish = import_module("flwr.cli.app_cmd.publish")
    config, warnings = publish.load_and_validate(app / "pyproject.toml", check_module=False)
    assert warnings == []
    publish._validate_app_name(app.name, "Flower App directory name")
    publish._validate_description(config["project"]["description"])
    paths = publish._collect_file_paths(app)
    publish._validate_files(paths)
    assert {path.relative_to(app).as_posix() for path in paths} == code() | {*FILES}
    _, metadata = build_fab_from_files(collect_files(app))
    assert metadata.fab_format_version == 1


def test_the_app_installs_what_the_project_depends_on_and_knows_its_keys(app):
    texts = [(folder / "pyproject.toml").read_text() for folder in (app, ROOT)]
    ours, whole = map(tomllib.loads, texts)
    for key in ("name", "version", "description", "requires-python", "dependencies"):
        assert ours["project"][key] == whole["project"][key]
    assert ours.keys() == {"project", "tool"} and ours["tool"].keys() == {"flwr"}
    assert "optional-dependencies" not in ours["project"]
    parts, ours = whole["tool"]["flwr"]["app"], ours["tool"]["flwr"]["app"]
    assert {key: ours[key] for key in parts} == parts
    (flower,) = [d for d in whole["project"]["dependencies"] if d.startswith("flwr")]
    assert ours["flwr-version-target"] == f"{NEWEST_TESTED}.0"
    assert "<" not in flower and "==" not in flower


def test_the_lines_for_a_small_pytorch_are_those_of_uv(app):
    held = (app / "pyproject.toml").read_text().rpartition("uncomment the lines.\n")[2]
    uv = tomllib.loads("\n".join(line.lstrip("# ") for line in held.splitlines()))["tool"]["uv"]
    (index,) = uv["index"]
    assert uv["sources"]["torch"] == [{"index": index["name"]}] and index["explicit"]


def test_a_folder_that_holds_anything_is_left_as_it_is(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file"):
        monkeypatch.setattr(sys, "argv", ["fedbary", "app", str(place)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"fedbary: DEST: '{place}'; expected") and "empty" in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_git_ignores_the_folder_of_the_walkthrough():
    asked = ["git", "check-ignore", "--no-index", "federation/keys/ca.key", "federation/state.db"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == asked[3:]
