"""A damaged or hostile run folder ends in one line, or serves as a whole one; it never hangs."""

import json
import os
import random
import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from every_method import NIGHT
from refusals import refused
from runs_of import SHORT
from safetensors.torch import load_file, save_file

import fedbary
from fedbary.commands.start import resume
from fedbary.data.forms import content_of
from fedbary.errors import RunError, SettingError
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import completed, read_yaml, resolve

QUICK = {**SHORT, "clients": 2}
RUNS = {
    "images": {"normalise": "channels", "projection": "WB", "holdout": 0.1},
    "gated": {"method": "FedHBMixture"},
    "numbers": {"task": "regression"},
}
WRONG = [None, [], {}, -1, 1e9, "x", "../x", [[1]], {"a": {}}, float("nan"), True]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, changes in RUNS.items():
        run_inline(resolve({**QUICK, **changes}), folder / name)
    return folder


def replaced(value, rng):
    """Return a value with one of its parts, or itself, replaced or left out."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        changed = value.copy()
        if rng.random() < 0.2:
            del changed[key]
        else:
            changed[key] = replaced(value[key], rng)
        return changed
    return rng.choice(WRONG)


def damaged_tensors(file, rng):
    """Rename, leave out, reshape, retype or spoil one tensor."""
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    made = rng.choice([
        lambda t: {}, lambda t: {f"{name}_": t}, lambda t: {name: t[..., None]},
        lambda t: {name: t.reshape(-1)[:1]}, lambda t: {name: t.double()},
        lambda t: {name: t.bfloat16()}, lambda t: {name: t.long()},
        lambda t: {name: torch.full_like(t, float("nan"))}, lambda t: {name: t, "more": t},
    ])  # fmt: skip
    save_file(tensors | {n: t.clone() for n, t in made(tensor).items()}, file)


def damage(file, rng):
    """Damage a file in one of the ways that its kind allows."""
    kind = rng.randrange(8)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.unlink()
        file.mkdir()
    elif kind == 2:
        file.unlink()
        os.mkfifo(file)
    elif kind == 3:
        file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
    elif kind == 4:
        file.write_bytes(rng.randbytes(200))
    elif kind == 5:
        file.write_bytes(rng.choice([b"", b"[" * 10**4, b"\xff\xfe", b"1" * 5000, b"null"]))
    elif file.suffix == ".safetensors":
        damaged_tensors(file, rng)
    elif file.name == "metrics.jsonl":
        lines = [replaced(json.loads(line), rng) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        text = file.read_text()
        held = replaced(yaml.safe_load(text), rng)
        file.write_text(yaml.safe_dump(held) if file.suffix == ".yaml" else json.dumps(held))


def use(folder):
    trained = fedbary.load(folder)
    trained.predict(trained.task.evaluation_examples(), samples=1)


def go_on(folder):
    posterior = folder / "posterior.safetensors"
    posterior.rmdir() if posterior.is_dir() else posterior.unlink(missing_ok=True)
    resume(folder, "last")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("task", [use, go_on])
@pytest.mark.parametrize("seed", range(20 if NIGHT else 8))
def test_a_damaged_folder_is_one_line(task, seed, runs, tmp_path):
    rng = random.Random(f"{task.__name__} {seed}")
    folder = tmp_path / "run"
    shutil.copytree(runs / rng.choice(list(RUNS)), folder)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    damage(rng.choice(files), rng)
    try:
        task(folder)
    except (SettingError, RunError, OSError) as error:
        assert len(str(error).splitlines()) == 1


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 10)}]\n" for last, name in pairwise("abcdefghij")
)


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]", "a: &a {b: *a}", "[" * 10**4])
def test_yaml_that_stands_for_too_much_is_refused_at_once(text, tmp_path):
    (tmp_path / "settings.yaml").write_text(text)
    began = time.process_time()
    refused("readable YAML", read_yaml, tmp_path / "settings.yaml")
    assert time.process_time() - began < 5


def test_yaml_with_a_few_aliases_is_read(tmp_path):
    (tmp_path / "grid.yaml").write_text("a: &a {x: 1}\nb: [*a, *a]\n")
    assert read_yaml(tmp_path / "grid.yaml") == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}]}


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_or_a_device_is_not_read(make, tmp_path):
    make(tmp_path / "file")
    with pytest.raises(OSError, match="a pipe or a device"):
        content_of(tmp_path / "file")


@pytest.fixture(scope="module")
def with_tensors(tmp_path_factory):
    """A run with each kind of file of tensors but networks: posterior, background, facts, rows."""
    folder = tmp_path_factory.mktemp("tensors") / "run"
    run_inline(completed({**QUICK, "method": "LDA", "normalise": "channels"}), folder)
    return folder


@pytest.fixture
def folder(with_tensors, tmp_path):
    return Path(shutil.copytree(with_tensors, tmp_path / "run"))


TENSORS = ("posterior", "background", "normaliser", "data-rows")


@pytest.mark.parametrize("name", TENSORS)
def test_any_bit_that_is_flipped_in_a_file_of_tensors_is_named(name, folder):
    file = folder / f"{name}.safetensors"
    whole, rng = file.read_bytes(), random.Random(name)
    header = 8 + int.from_bytes(whole[:8], "little")
    places = [rng.randrange(8 * header) for _ in range(12)]
    places += [rng.randrange(8 * header, 8 * len(whole)) for _ in range(12)]
    for place in places:
        spoilt = bytearray(whole)
        spoilt[place // 8] ^= 1 << place % 8
        file.write_bytes(spoilt)
        refused(file.name, fedbary.load, folder)
    file.write_bytes(whole)
    fedbary.load(folder)


@pytest.mark.parametrize("name", TENSORS)
def test_a_pipe_in_the_place_of_tensors_is_refused(name, folder):
    (folder / f"{name}.safetensors").unlink()
    os.mkfifo(folder / f"{name}.safetensors")
    refused(rf"{name}\.safetensors", fedbary.load, folder)


def test_a_run_does_not_start_from_a_flipped_bit(folder, tmp_path):
    file = folder / "posterior.safetensors"
    spoilt = bytearray(file.read_bytes())
    spoilt[-1] ^= 1
    file.write_bytes(spoilt)
    after = completed({**QUICK, "method": "LDA", "start_from": str(folder)})
    refused(r"posterior\.safetensors.*not what was written", run_inline, after, tmp_path / "next")


def test_words_of_another_run_beside_the_rows_are_named(folder):
    words = (folder / "data.json").read_text()
    (folder / "data.json").write_text(words.replace('"least": ', '"least": 1'))
    refused(r"data\.json.*not what was written", fedbary.load, folder)


def test_tensors_of_a_version_without_digests_are_read(folder):
    for name in TENSORS[:3]:
        file = folder / f"{name}.safetensors"
        save_file(load_file(file), file)
    fedbary.load(folder)
