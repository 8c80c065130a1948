"""Federations of sites whose own data are Parquet files, pictures of mixed sizes, or saved sets."""

import datasets
import numpy as np
import own_data
import pytest
import torch
from flwr.common.config import parse_config_args
from PIL import Image
from runs_of import SHORT, lines, tensors
from saved_sets import digits, partitions, patients

from fedbary import client_app
from fedbary.data.batches import scale_pixels
from fedbary.data.image_examples import own_data as data_of
from fedbary.data.image_layout import ImageLayout
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve

SMALL = {**SHORT, "holdout": 0.0, "evaluate_clients": 0}


def federation(chosen, paths):
    nodes = [{"data-path": str(path), "name": path.stem} for path in paths]
    return InlineGrid(client_app.app, nodes, chosen.model_dump())


def test_sites_with_parquet_train_with_a_server_whose_table_a_function_returns(tmp_path, caplog):
    rows = own_data.patients()
    paths = [tmp_path / f"{name}.parquet" for name in ("north", "south", "wrong")]
    for path, part in zip(paths, (rows[:90], rows[90:], rows.drop(columns="ward")), strict=True):
        part.to_parquet(path)
    given = {"task": "tables", "dataset": "own_data:patients", "target": "outcome", "clients": 3}
    chosen = resolve({**SMALL, **given})
    run(federation(chosen, paths), chosen, tmp_path / "run")
    line = lines(tmp_path / "run")[-1]
    assert [(c["site"], c["num-examples"]) for c in line["clients"]] == [
        ("north", 90),
        ("south", 110),
    ]
    assert "missing: ward" in caplog.text
    pooled = torch.from_numpy(rows["age"].to_numpy(copy=True))
    found = tensors(tmp_path / "run", "standardiser")
    assert float(found["mean"][0]) == pytest.approx(float(pooled.mean()), rel=1e-12)


def test_sites_with_pictures_of_mixed_sizes_normalise_together(tmp_path, caplog):
    rng = np.random.default_rng(0)
    for site, sides in (("north", (9, 14)), ("south", (8, 20))):
        for name in ("cat", "dog"):
            (tmp_path / site / name).mkdir(parents=True)
            for number, side in enumerate(sides * 4):
                pixels = rng.integers(0, 256, (side, side + number % 2, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / site / name / f"{number}.png")
    (tmp_path / "west" / "cow").mkdir(parents=True)
    given = {"dataset": "none", "classes": "cat,dog", "input_shape": "1x8x8", "clients": 3,
             "resize": "crop", "normalise": "channels"}  # fmt: skip
    chosen = resolve({**SMALL, **given})
    paths = [tmp_path / name for name in ("north", "south", "west")]
    run(federation(chosen, paths), chosen, tmp_path / "run")
    assert "'cow'; expected folders named cat, dog" in caplog.text
    layout = ImageLayout((1, 8, 8), ("cat", "dog"))
    pixels = torch.cat([scale_pixels(data_of(str(path), layout, "crop")[0]) for path in paths[:2]])
    found = tensors(tmp_path / "run", "normaliser")
    assert float(found["mean"]) == pytest.approx(float(pixels.double().mean()), rel=1e-12)
    assert float(found["std"]) == pytest.approx(float(pixels.double().std(correction=0)), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "tables"])
def test_sites_with_partitions_of_flower_s_command_train_as_sites_with_files(task, tmp_path):
    """Flower reads a node's config from the words of its own tutorial."""
    folders = partitions(digits() if task == "classification" else patients(), tmp_path / "demo")
    held = [datasets.load_from_disk(str(folder)) for folder in folders]
    files = [
        folder.with_suffix(".npz" if task == "classification" else ".csv") for folder in folders
    ]
    for part, file in zip(held, files, strict=True):
        if task == "classification":
            np.savez(file, x=np.stack([np.array(i) for i in part["image"]]), y=part["label"])
        else:
            names = part.features["target"].names
            part.to_pandas().replace({"target": dict(enumerate(names))}).to_csv(file, index=False)
    given = {"dataset": "none", "classes": 10, "input_shape": "1x8x8"}
    if task == "tables":
        given = {"task": "tables", "dataset": "breast_cancer", "classes": "malignant,benign"}
        given["target"] = "target"
    chosen = resolve({**SMALL, **given, "clients": 2})
    for run_of, places in (("saved", folders), ("files", files)):
        nodes = [
            {**parse_config_args([f'data-path="{place}"']), "name": str(k)}
            for k, place in enumerate(places)
        ]
        grid = InlineGrid(client_app.app, nodes, chosen.model_dump())
        run(grid, chosen, tmp_path / run_of)
    one, other = (tensors(tmp_path / name) for name in ("saved", "files"))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
