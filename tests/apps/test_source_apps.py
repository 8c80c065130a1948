"""Federations of sites whose own data are Parquet files, or folders of pictures of mixed sizes."""

import numpy as np
import own_data
import pytest
import torch
from PIL import Image
from runs_of import SHORT, lines, tensors

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
