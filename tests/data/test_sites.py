"""Sites with data of their own: what a node's config may say, and data that do not fit."""

import numpy as np
import pytest
import torch
from own_sites import cut
from PIL import Image
from refusals import refused
from runs_of import lines
from safetensors.torch import load_file

from fedbary import client_app
from fedbary.data.image_examples import own_data
from fedbary.data.image_layout import ImageLayout, parse_classes, parse_shape
from fedbary.data.sites import Site, site_from
from fedbary.errors import RunError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve

TASK = ImageLayout((1, 8, 8), tuple("0123456789"))
OWN = {
    "engine": "inline", "dataset": "none", "classes": 10, "input_shape": "1x8x8", "clients": 3,
    "pictures": False, "rounds": 3, "local_epochs": 2, "samples": 3, "round_timeout": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cut(tmp_path_factory.mktemp("sites"))


def test_a_folder_of_images_and_a_file_say_the_same(files, tmp_path):
    x, y = own_data(str(files[2]), TASK)
    assert (x.shape, x.dtype, len(y)) == ((300, 1, 8, 8), torch.uint8, 300)
    np.savez(tmp_path / "c.npz", x=x.numpy(), y=y.numpy())
    again = own_data(str(tmp_path / "c.npz"), TASK)
    assert torch.equal(again[0], x) and torch.equal(again[1], y)


def test_labels_follow_the_order_of_the_agreed_names(tmp_path):
    for name, grey in (("benign", 10), ("malignant", 200)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((8, 8), grey, np.uint8)).save(tmp_path / name / "1.png")
    x, y = own_data(str(tmp_path), ImageLayout((1, 8, 8), ("malignant", "benign")))
    assert {int(label): int(image.max()) for image, label in zip(x, y, strict=True)} == {
        0: 200, 1: 10,
    }  # fmt: skip


def spoilt(change, files, folder):
    with np.load(files[0]) as held:
        arrays = change(dict(held))
    np.savez(folder / "spoilt.npz", **arrays)
    return folder / "spoilt.npz"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {**a, "x": a["x"][:, :4]}, "N×H×W"),
        (lambda a: {**a, "x": np.repeat(a["x"], 2, 1)}, "'1×16×8';.* images of 1×8×8"),
        (lambda a: {**a, "y": a["y"] + 5}, "labels from 0 to 9, as there are 10"),
        (lambda a: {**a, "y": a["y"][1:]}, "a label for every input"),
        (lambda a: {"x": a["x"]}, "x and y, or x_train, y_train"),
        (lambda a: {**a, "y": np.array([{}] * len(a["y"]))}, "without pickled objects"),
    ],
)
def test_data_that_do_not_fit_are_refused_in_one_line(change, message, files, tmp_path):
    refused(message, lambda: own_data(str(spoilt(change, files, tmp_path)), TASK))


def test_folders_that_do_not_fit_are_refused_in_one_line(tmp_path):
    (tmp_path / "cat").mkdir()
    refused(r"'cat';.*folders named 0, 1", own_data, str(tmp_path), TASK)
    (tmp_path / "cat").rename(tmp_path / "3")
    refused("no image", own_data, str(tmp_path), TASK)
    Image.fromarray(np.zeros((9, 8), np.uint8)).save(tmp_path / "3" / "x.png")
    refused(r"x.png: '9×8 pixels';.*8×8, which the model takes", own_data, str(tmp_path), TASK)
    (tmp_path / "3" / "x.png").write_bytes(b"none")
    refused(r"x.png: .*; expected an image", own_data, str(tmp_path), TASK)
    Image.fromarray(np.full((8, 8), 1000, np.uint16)).save(tmp_path / "3" / "x.png")
    refused(r"x.png: 'pixels of mode I;16';.*8 bits a channel", own_data, str(tmp_path), TASK)
    refused("there is none", own_data, str(tmp_path / "absent"), TASK)


def test_a_site_s_pictures_take_the_federation_s_size_where_the_settings_say_so(tmp_path):
    (tmp_path / "3").mkdir()
    for side, name in ((9, "a.png"), (30, "b.jpg"), (8, "c.bmp")):
        Image.fromarray(np.full((side, 12, 3), 70, np.uint8)).save(tmp_path / "3" / name)
    refused("a.png: '9×12 pixels; refused.*resize=crop, pad", own_data, str(tmp_path), TASK)
    x, y = own_data(str(tmp_path), TASK, "crop")
    assert x.shape == (3, 1, 8, 8) and y.tolist() == [3, 3, 3] and (x.int() - 70).abs().max() <= 1


def test_what_a_node_config_may_say():
    part = site_from({"partition-id": 2, "num-partitions": 3})
    assert part == Site("partition 2", "", 2, 3) and part.key == 2
    own = site_from({"data-path": "/data/x.npz", "cpus": 4})
    assert own == Site("site c7619e6f", "/data/x.npz", cpus=4, shared=frozenset())
    named = site_from({"data-path": "/data/x.npz", "name": "St Mary"})
    assert named.name == "St Mary" and named.key != own.key


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "data-path, the site's own data, or partition-id"),
        ({"partition-id": 3, "num-partitions": 3}, "below num-partitions, 3"),
        ({"partition-id": 1}, "num-partitions: None"),
        ({"partition-id": "one", "num-partitions": 3}, "partition-id: 'one'"),
        ({"data-path": "x.npz", "cpus": -1}, "cpus: -1"),
        ({"data-path": "x.npz", "withhold": "counts"}, "withhold: 'counts'; expected label-counts"),
    ],
)
def test_node_configs_that_say_too_little(config, message):
    refused(message, site_from, config)


@pytest.mark.parametrize("text", ["28x28", "2x28x28", "1x4x28", "1x28x10000", ""])
def test_shapes_that_are_none(text):
    refused("input_shape", parse_shape, text)


@pytest.mark.parametrize("text", ["1", "a", "a,a", "a,,b", ""])
def test_classes_that_are_none(text):
    refused("classes", parse_classes, text)


def test_settings_without_a_data_set_need_classes_and_shape():
    assert resolve(OWN).classes == "10"
    for key in ("classes", "input_shape"):
        refused(f"{key}: 'auto'", resolve, {**OWN, key: "auto"})


def federation(chosen, paths):
    nodes = [{"data-path": str(path), "name": path.stem} for path in paths]
    return InlineGrid(client_app.app, nodes, chosen.model_dump())


@pytest.mark.slow
def test_sites_with_their_own_data_train_a_network_that_a_server_without_data_scores(
    files, tmp_path, caplog
):
    chosen = resolve({**OWN, "pictures": True})
    with caplog.at_level("INFO"):
        run(federation(chosen, files), chosen, tmp_path / "run")
    assert "round 0/3  not scored, no site has answered" in caplog.text
    assert "nan" not in caplog.text and "round 3/3  accuracy" in caplog.text
    first, *_, last = lines(tmp_path / "run")
    assert first["accuracy"] is None
    assert [client["site"] for client in last["clients"]] == ["a", "b", "c"]
    assert [client["num-examples"] for client in last["clients"]] == [360, 450, 270]
    held_out = last["held_out"]["clients"]
    mean = np.average(
        [client["accuracy"] for client in held_out], weights=[c["num-examples"] for c in held_out]
    )
    assert last["accuracy"] == pytest.approx(mean)
    assert last["accuracy"] > 0.5
    assert load_file(tmp_path / "run" / "posterior.safetensors")
    assert (tmp_path / "run" / "learning-curves.png").exists()


@pytest.mark.slow
def test_the_server_may_score_on_a_test_set_of_its_own(files, tmp_path):
    chosen = resolve({**OWN, "dataset": "digits", "rounds": 1})
    run(federation(chosen, files), chosen, tmp_path / "run")
    first, last = lines(tmp_path / "run")
    assert 0 < first["accuracy"] < 1 and 0 < last["accuracy"] < 1
    assert "local_models" not in last


@pytest.mark.slow
def test_a_site_that_does_not_fit_says_why_and_the_others_go_on(files, tmp_path, caplog):
    wrong = spoilt(lambda a: {**a, "x": np.repeat(a["x"], 2, 1)}, files, tmp_path)
    chosen = resolve({**OWN, "rounds": 1})
    run(federation(chosen, [files[0], wrong, files[2]]), chosen, tmp_path / "run")
    assert [client["site"] for client in lines(tmp_path / "run")[1]["clients"]] == ["a", "c"]
    left_out = "is left out: ValueError: expected images of 1×8×8; the site's log says more"
    assert left_out in caplog.text
    with pytest.raises(RunError, match="no node can take part"):
        run(federation(chosen, [wrong]), resolve({**OWN, "clients": 1}), tmp_path / "none")


def test_a_partition_must_fit_too(tmp_path):
    chosen = resolve({**OWN, "dataset": "digits"})
    wrong = chosen.model_copy(update={"dataset": "none", "input_shape": "1x9x9"})
    grid = InlineGrid(client_app.app, 2, chosen.model_dump())
    with pytest.raises(RunError, match=r"images of \(1, 9, 9\)"):
        run(grid, wrong, tmp_path / "run")


@pytest.mark.slow
def test_a_site_with_a_folder_for_its_state_notices_that_its_data_changed(files, tmp_path, caplog):
    chosen = resolve({**OWN, "clients": 2, "rounds": 2, "local_epochs": 1, "evaluate_clients": 0})
    with np.load(files[0]) as held:
        x, y = held["x"], held["y"]
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    nodes = [
        {"data-path": f"{tmp_path}/{name}.npz", "name": name, "state-path": f"{tmp_path}/{name}"}
        for name in ("a", "b")
    ]

    class Changing(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            asked = {message.content["config"].get("server-round") for message in messages}
            if asked == {2}:
                np.savez(tmp_path / "a.npz", x=x[::-1], y=y[::-1])
            return super().send_and_receive(messages, timeout=timeout)

    run(Changing(client_app.app, nodes, chosen.model_dump()), chosen, tmp_path / "run")
    first, second = lines(tmp_path / "run")[1:]
    assert [client["site"] for client in first["clients"]] == ["a", "b"]
    assert [client["site"] for client in second["clients"]] == ["b"]
    assert "expected the data that the site began the run with" in second["refused"][0]
    assert "no state-path" not in caplog.text
