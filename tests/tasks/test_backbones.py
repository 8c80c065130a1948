"""A backbone is a transformation of data: a run with one is a run on its features."""

import socket
from dataclasses import replace

import numpy as np
import pytest
import torch
from own_backbones import tiny
from runs_of import lines, posterior, same, timeless_lines
from safetensors.torch import save_file
from torch import nn

import fedbary
from fedbary import client_app
from fedbary.backbones import Backbone, load
from fedbary.backbones._body import Transform, fill
from fedbary.backbones._torchvision import transform_of
from fedbary.data.image_examples import own_data
from fedbary.data.image_layout import ImageLayout
from fedbary.errors import SettingError
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

QUICK = {
    "engine": "inline", "device": "cpu", "pictures": False, "dataset": "own_data:bars",
    "clients": 4, "min_examples": 20, "rounds": 2, "local_epochs": 1, "samples": 2,
    "holdout": 0.2, "ood_dataset": "digits",
}  # fmt: skip


def chosen(data_dir, **changes):
    return resolve({**QUICK, "backbone": "own_backbones:tiny", "data_dir": str(data_dir)} | changes)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backbone")
    settings = chosen(folder)
    run_inline(settings, folder / "run")
    return settings, folder / "run"


def but_for_pixels(found):
    """Return lines without the linear model, which sees pixels under the one, features else."""
    return [{name: value for name, value in line.items() if name != "behind"} for line in found]


def kept(settings, x):
    """Return the features of images as the run has them."""
    from fedbary.tasks._images import kept_features

    return kept_features(x, task_of(settings).backbone, settings.data_dir)


@pytest.mark.slow
def test_a_run_with_a_backbone_is_one_on_its_features_bit_for_bit(done, tmp_path):
    settings, folder = done
    held, foreign = task_of(settings).held, task_of(resolve({**QUICK, "dataset": "digits"})).held
    for name, data in {"bars": held, "digits": foreign}.items():
        x_train, x_test = (kept(settings, x).numpy() for x in (data.x_train, data.x_test))
        y = {"y_train": data.y_train, "y_test": data.y_test}
        np.savez(tmp_path / f"{name}.npz", x_train=x_train, x_test=x_test, **y)
    on = {"dataset": str(tmp_path / "bars.npz"), "ood_dataset": str(tmp_path / "digits.npz")}
    run_inline(resolve({**QUICK, **on, "model": "linear", "bayesian_layers": 1}), tmp_path / "on")
    assert same(posterior(folder), posterior(tmp_path / "on"))
    assert but_for_pixels(timeless_lines(folder)) == but_for_pixels(timeless_lines(tmp_path / "on"))


def test_features_that_were_kept_are_those_of_the_body(done):
    settings, _ = done
    x = task_of(settings).held.x_test
    body, _ = tiny()
    with torch.no_grad():
        shown = torch.nn.functional.interpolate(x / 255, (12, 12), mode="bilinear")
        by_hand = body.eval()((shown - 0.3) / 0.2).mean((2, 3))
    assert torch.allclose(kept(settings, x), by_hand, atol=1e-5)
    assert torch.allclose(task_of(settings).backbone.features(x[:7]), by_hand[:7], atol=1e-5)


def test_features_do_not_depend_on_what_else_passes_with_an_image():
    body = load("own_backbones:tiny", "auto", "auto", torch.device("cpu"))
    images = torch.rand(70, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    together = body.features(images)
    alone = torch.cat([body.features(part) for part in images.split([1, 15, 49, 5])])
    assert torch.equal(together, alone)


def test_the_body_does_not_change_and_messages_hold_the_head_alone(done):
    settings, folder = done
    body, _ = tiny()
    after = task_of(settings).backbone.body.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in body.state_dict().items())
    assert sum(tensor.numel() for tensor in posterior(folder).values()) \
        == 2 * 12 * 8 + 8  # fmt: skip


def test_a_run_that_is_loaded_predicts_images(done):
    settings, folder = done
    trained = fedbary.load(folder, own_code=True)
    examples = trained.evaluation_examples()
    assert examples.x.shape[1:] == (1, 8, 8)
    accuracy = trained.task.judged(trained.predict(examples, samples=50), examples.y)["accuracy"]
    assert accuracy == pytest.approx(lines(folder)[-1]["accuracy"], abs=0.15)


def test_a_site_with_another_backbone_is_left_out_by_name(tmp_path, caplog):
    settings = chosen(tmp_path, rounds=1, ood_dataset="none")
    grid = InlineGrid(client_app.app, settings.clients, settings.model_dump())
    first = min(grid.get_node_ids())
    grid._contexts[first].run_config = {
        **settings.model_dump(), "backbone": "own_backbones:other",
    }  # fmt: skip
    run(grid, settings, tmp_path / "run")
    (line,) = lines(tmp_path / "run")[1:]
    assert len(line["clients"]) == 3
    assert "backbone" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        ("own_backbones:absent", "can be imported"),
        ("own_backbones:number", "returns an nn.Module"),
        ("own_backbones:flat", "features (N, D)"),
        ("own_backbones:infinite", "finite"),
        ("torchvision:resnet", "a network of torchvision"),
        ("resnet18", "timm:NAME, torchvision:NAME"),
    ],
)
def test_what_is_no_backbone_is_refused_in_one_line(backbone, said, tmp_path):
    with pytest.raises(SettingError, match="backbone") as refused:
        task_of(chosen(tmp_path, backbone=backbone)).signature()
    assert said in str(refused.value)


def test_weights_come_from_a_file_by_name_or_in_order(tmp_path):
    body, _ = tiny()
    file, renamed = tmp_path / "weights.safetensors", tmp_path / "renamed.pt"
    wanted = {name: torch.full_like(t, 2) for name, t in body.state_dict().items()}
    save_file(wanted, file)
    torch.save({f"its_{name}": t for name, t in wanted.items()}, renamed)
    for place in (file, renamed):
        found = load("own_backbones:tiny", str(place), "auto", torch.device("cpu"))
        assert all(bool((t == 2).all()) for t in found.body.state_dict().values())
    for wrong, said in {
        "absent.pt": "there is none",
        str(tmp_path / "odd.pt"): "it has no 0",
    }.items():
        torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "odd.pt")
        with pytest.raises(SettingError, match="backbone_weights") as refused:
            load("own_backbones:tiny", wrong, "auto", torch.device("cpu"))
        assert said in str(refused.value)


@pytest.mark.parametrize("changes", [{"model": "cnn"}, {"augment": "true"}, {"task": "tables"}])
def test_settings_that_do_not_go_with_a_backbone_are_refused(changes, tmp_path):
    with pytest.raises(SettingError):
        chosen(tmp_path, **{"dataset": "breast_cancer"} | changes)


def test_a_run_does_not_go_on_with_another_backbone(done):
    settings, folder = done
    task_of(settings).require_same_data(folder)
    other = settings.model_copy(update={"backbone": "own_backbones:other"})
    with pytest.raises(SettingError, match="digest"):
        task_of(other).require_same_data(folder)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((4, 5), np.float32), "features: 12"),
        (np.full((4, 12), np.nan, np.float32), "not finite"),
        (np.zeros((4, 12), np.uint8), "features N×D as floats"),
    ],
)
def test_a_site_s_own_features_are_refused_in_one_line(x, said, tmp_path):
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(4) % 2)
    with pytest.raises(SettingError) as refused:
        own_data(str(tmp_path / "own.npz"), ImageLayout((12,), ("a", "b")))
    assert said in str(refused.value)


def test_features_have_no_range(tmp_path):
    x = np.linspace(-1e6, 1e6, 48, dtype=np.float32).reshape(4, 12)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(4) % 2)
    found, _ = own_data(str(tmp_path / "own.npz"), ImageLayout((12,), ("a", "b")))
    assert np.array_equal(found.numpy(), x)


def test_a_file_of_weights_that_is_damaged_says_no_more_than_that(tmp_path):
    (tmp_path / "secret.pt").write_bytes(b"no weights" * 9)
    with pytest.raises(SettingError) as error:
        fill(torch.nn.Linear(2, 2), str(tmp_path / "secret.pt"))
    assert error.value.allowed == "a file of tensors by name; reading it ended with UnpicklingError"


@pytest.mark.parametrize("sides", [(30, 40), (400, 300), (224, 224), (256, 300), (8, 8)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_network_of_torchvision_sees_what_its_own_weights_ask_for(sides, mode):
    transforms = pytest.importorskip("torchvision.transforms")
    preset = pytest.importorskip("torchvision.transforms._presets").ImageClassification
    how = transforms.InterpolationMode(mode)
    theirs = preset(crop_size=224, resize_size=256, interpolation=how)
    x = torch.rand(2, 3, *sides, generator=torch.Generator().manual_seed(0))
    shrinks = max(sides) > 256
    if mode == "bicubic" and not shrinks:
        theirs.antialias = False  # of an enlarged image another cubic
    wanted = theirs(x)
    mean, std = (x.new_tensor(held).view(3, 1, 1) for held in (theirs.mean, theirs.std))
    wanted = ((wanted * std + mean).clamp(0, 1) - mean) / std
    torch.testing.assert_close(transform_of(theirs)(x), wanted, atol=1e-5, rtol=0)


def test_another_size_cuts_off_the_same_part():
    whole = Transform(224, (0.5,), (0.5,), "bilinear", 256)
    assert (whole.sized(96).size, whole.sized(96).shorter) == (96, 110)
    assert Transform(224).sized(96).shorter is None


def test_the_digest_of_a_network_that_sees_whole_images_is_as_it_was():
    body, transform = nn.Linear(2, 2), Transform(96, (0.5,), (0.2,), "bicubic")
    before = "Transform(size=96, mean=(0.5,), std=(0.2,), mode='bicubic')"
    assert str(transform) == before
    cut = Backbone("a", body, replace(transform, shorter=110))
    assert cut.digest != Backbone("a", body, transform).digest


def test_a_network_of_timm_is_read_from_the_cache_and_an_absent_one_asks_the_hub_once(
    tmp_path, monkeypatch
):
    """Without a network the hub's own library asks for a minute."""
    timm, asked = pytest.importorskip("timm"), []

    def unreachable(*of, **_):
        asked.append(of)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    held = tmp_path / "models--timm--test_resnet.r160_in1k"
    (held / "snapshots" / "abc").mkdir(parents=True)
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text("abc")
    given = timm.create_model("test_resnet").state_dict()
    save_file(given, held / "snapshots" / "abc" / "model.safetensors")
    found = load("timm:test_resnet.r160_in1k", "auto", "auto", torch.device("cpu"))
    own = found.body.state_dict()
    assert not asked and all(torch.equal(tensor, given[name]) for name, tensor in own.items())
    with pytest.raises(SettingError, match="or the internet, to fetch them"):
        load("timm:test_vit.r160_in1k", "auto", "auto", torch.device("cpu"))
    assert len(asked) == 1


@pytest.mark.parametrize("tag", ["a1/../../x", "none_such", ""])
def test_a_tag_that_timm_does_not_know_is_refused_with_those_it_knows(tag):
    pytest.importorskip("timm")
    with pytest.raises(SettingError, match=r"a tag that timm knows: .*resnet18\.a1_in1k"):
        load(f"timm:resnet18.{tag}", "auto", "auto", torch.device("cpu"))
