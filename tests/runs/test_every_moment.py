"""A run that is killed between any two changes of its folder ends with the same bytes."""

import shutil
import subprocess

import forked
import pytest
import yaml
from runs_of import SHORT, timeless_lines

from fedbary.errors import SettingError
from fedbary.launching.launch import validate_run
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

pytestmark = pytest.mark.slow

QUICK = {
    **SHORT, "clients": 2, "rounds": 2, "server_momentum": 0.5, "batch_size": 256,
    "train_fraction": 0.2,
}  # fmt: skip


def content(folder):
    """Everything that a folder holds, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def ended(folder):
    """What a run ends with, without the time it took."""
    names = ["posterior.safetensors", "data-rows.safetensors", "signature.json"]
    return [(folder / name).read_bytes() for name in names], timeless_lines(folder)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """A whole run's folder, and a copy of it before each of its changes."""
    base = tmp_path_factory.mktemp("moments")
    whole, file, copies = base / "run", base / "settings.yaml", base / "states"
    copies.mkdir()
    file.write_text(yaml.safe_dump(resolve({**QUICK, "output": str(whole)}).model_dump()))
    command = [forked.command("every_moment"), file, whole, copies]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
    different = []
    for folder in sorted(copies.iterdir()):
        if not different or content(folder) != content(different[-1]):
            different.append(folder)
    return whole, different


def test_a_run_goes_on_from_each(states, tmp_path):
    whole, folders = states
    assert not content(folders[0]) and len(folders) > 15, "the hook saw too few changes"
    left_whole = 0
    for folder in folders:
        there = tmp_path / folder.name
        shutil.copytree(folder, there)
        begins = not (there / "settings.yaml").exists()
        words = {**QUICK, "output": str(there), "resume": "none" if begins else "last"}
        if (there / "posterior.safetensors").exists():
            left_whole += 1
            with pytest.raises(SettingError, match="this one has ended"):
                validate_run(resolve(words), there)
        else:
            run_inline(validate_run(resolve(words), there), there)
        assert ended(there) == ended(whole), sorted(content(folder))
        assert not list(there.glob("*.partial"))
    assert left_whole < 5, "the run wrote much after its end"
