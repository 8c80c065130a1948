"""What was read is kept while its files stay; what has changed since is read, by each reader."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedbary.data.forms import Kept, one_state, state_of
from fedbary.data.image_examples import own_data
from fedbary.data.image_layout import ImageLayout
from fedbary.data.images import load as load_images
from fedbary.data.tables import load as load_numbers
from fedbary.data.tables import load_labelled
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.trained import load as load_run

LAYOUT = ImageLayout((1, 8, 8), ("a", "b"))
CSV, FRAME = "x,z,y\n{0},1,2\n3,2,1\n5,3,2\n6,4,1\n", {"x": [0, 3, 5, 6], "y": list("abab")}


def write_arrays(place, grey):
    x, y = np.full((4, 8, 8), 17, np.uint8), np.arange(4) % 2
    x[0, 0, 0] = 20 + grey
    np.savez(place / "t.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def write_pictures(place, grey):
    for name in "ab":
        (place / "t" / name).mkdir(parents=True, exist_ok=True)
        for number in range(3):
            pixels = np.full((8, 8), 20 + grey, np.uint8)
            Image.fromarray(pixels).save(place / "t" / name / f"{number}.bmp")


def write_function(place, first):
    text = (
        f"import pandas as pd\ndef f():\n    return pd.DataFrame({FRAME!r}).replace(0, {first})\n"
    )
    (place / "kept_own.py").write_text(text)
    sys.modules.pop("kept_own", None)


def write_uci(place, first):
    (place / "t").mkdir(exist_ok=True)
    (place / "t" / "data.txt").write_text(f"{first} 1\n3 2\n5 1\n6 2\n")
    for name, text in {"features": "0", "target": "1", "train_0": "0\n1\n2", "test_0": "3"}.items():
        (place / "t" / f"index_{name}.txt").write_text(text)


READERS = {
    "numbers": (
        lambda place, n: (place / "t.csv").write_text(CSV.format(n)),
        lambda place: load_numbers("t.csv", place, "y"),
    ),
    "classes": (
        lambda place, n: (place / "t.csv").write_text(CSV.format(n)),
        lambda place: load_labelled("t.csv", place, "y"),
    ),
    "uci": (write_uci, lambda place: load_numbers("t/", place)),
    "arrays": (write_arrays, lambda place: load_images("t.npz", place, False)),
    "laid out": (
        lambda place, n: write_arrays(place, n) or (place / "t.npz").replace(place / "digits.npz"),
        lambda place: load_images("digits", place, False),
    ),
    "pictures": (write_pictures, lambda place: load_images("t/", place, False)),
    "a site's arrays": (write_arrays, lambda place: own_data(f"{place}/t.npz", LAYOUT)[0]),
    "a site's pictures": (write_pictures, lambda place: own_data(f"{place}/t", LAYOUT)[0]),
}


def inputs(held):
    x = held if isinstance(held, torch.Tensor) else held.examples[0]
    return float(x.flatten()[0]), float(x.double().sum())


@pytest.mark.parametrize("kind", READERS)
def test_what_has_changed_is_read_again_and_the_rest_is_kept(kind, tmp_path):
    write, load = READERS[kind]
    write(tmp_path, 1)
    first = load(tmp_path)
    before = inputs(first)
    assert load(tmp_path) is first
    with one_state():
        assert load(tmp_path) is first
        write(tmp_path, 9)
        assert load(tmp_path) is first
    assert inputs(load(tmp_path)) != before


def test_a_function_of_one_s_own_is_called_once_a_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_function(tmp_path, 1)
    with one_state():
        first = load_labelled("kept_own:f", tmp_path, "y")
        assert load_labelled("kept_own:f", tmp_path, "y") is first
    write_function(tmp_path, 92)
    assert float(load_labelled("kept_own:f", tmp_path, "y").x.max()) == 92


def test_relative_names_are_of_the_folder_that_one_is_in(tmp_path, monkeypatch):
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.csv").write_text(CSV.format(len(found)))
        monkeypatch.chdir(tmp_path / name)
        found.append(inputs(load_numbers("./t.csv", "elsewhere", "y")))
    assert found[0] != found[1]


def test_a_run_after_its_file_was_written_anew_is_on_the_new_rows(tmp_path):
    file, chance = tmp_path / "t.csv", np.random.default_rng(0)
    words = {
        "task": "tables", "dataset": str(file), "target": "y", "engine": "inline", "clients": 2,
        "rounds": 1, "model": "linear", "samples": 2, "pictures": False,
    }  # fmt: skip
    for count in (60, 80):
        table = pd.DataFrame(chance.normal(size=(count, 3)).round(3), columns=["a", "b", "c"])
        table.assign(y=np.where(table["a"] > 0, "ill", "well")).to_csv(file, index=False)
        run_inline(resolve(words), tmp_path / f"of-{count}")
        trained = load_run(tmp_path / f"of-{count}")
        assert trained.data.said["rows"] == count
        trained.evaluation_examples()


def test_the_longest_unused_is_given_up(tmp_path):
    held, read = Kept(2), []
    for key in "abaca":
        held.get(key, None, lambda key=key: read.append(key))
    assert read == list("abc") and state_of(tmp_path / "absent")[1] is None
