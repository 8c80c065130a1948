"""What a run sends to the server and to the sites: the code, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLWR = str(Path(sys.executable).parent / "flwr")
CODE = ("fedbary", "strategies", "client_app", "server_app")
FILES = ("simulation.yaml", "README.md", "LICENSE", "pyproject.toml")
PRIVATE = (
    "federation/keys/ca.json", "federation/state.yaml", "federation/run.toml", "federation/a.py",
    "federation/sites/0/notes.md", "keys/north.toml", "tests/helper.py", "findings/best/runs.csv",
    "examples/data.json", "runs/x/settings.yaml", "secret.yaml", "notes.md",
)  # fmt: skip


def test_nothing_but_code_is_sent(tmp_path):
    clone, built = tmp_path / "clone", tmp_path / "built"
    built.mkdir()
    for part in CODE:
        shutil.copytree(ROOT / part, clone / part)
    for part in (*FILES, ".gitignore"):
        shutil.copy(ROOT / part, clone)
    for part in PRIVATE:
        (clone / part).parent.mkdir(parents=True, exist_ok=True)
        (clone / part).write_text("{}")
    subprocess.run([FLWR, "build", "--app", str(clone)], cwd=built, check=True, timeout=120)
    (bundle,) = built.glob("*.fab")
    with zipfile.ZipFile(bundle) as sent:
        names = set(sent.namelist())
    assert {name.split("/")[0] for name in names} == {*CODE, *FILES, ".info"}
    code = {f.relative_to(ROOT).as_posix() for part in CODE for f in (ROOT / part).rglob("*.py")}
    assert code <= names
    assert {name for name in names if "/" in name and not name.startswith(".info")} <= code


def test_git_ignores_the_folder_of_the_walkthrough():
    asked = ["git", "check-ignore", "--no-index", "federation/keys/ca.key", "federation/state.db"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == asked[3:]
