"""Normalisation of images by statistics that the sites compute together."""

import numpy as np
import pytest
import torch
from runs_of import lines
from safetensors.torch import load_file

import fedbary
from fedbary.data import deal
from fedbary.data.batches import scale_pixels
from fedbary.data.images import Normaliser, pixel_sums
from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import _sums, task_of

CHOSEN = {
    "engine": "inline", "device": "cpu", "dataset": "own_data:bars", "normalise": "channels",
    "pictures": False,
    "clients": 4, "min_examples": 20, "rounds": 2, "local_epochs": 1, "samples": 2,
    "holdout": 0.2, "ood_dataset": "digits",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("normalised") / "run"
    run_inline(resolve(CHOSEN), folder)
    return folder


def pooled(task):
    shards = [deal.client_shard(task.held, task.deal, 4, client) for client in range(4)]
    return torch.cat([scale_pixels(shard.x) for shard in shards]).double()


@pytest.mark.slow
def test_the_federation_s_statistics_are_those_of_the_pooled_training_pixels(run):
    pixels = pooled(task_of(resolve(CHOSEN)))
    found = load_file(run / "normaliser.safetensors")
    assert found["mean"].numpy() == pytest.approx(pixels.mean((0, 2, 3)).numpy(), rel=1e-12)
    assert found["std"].numpy() == pytest.approx(
        pixels.std((0, 2, 3), correction=0).numpy(), rel=1e-12
    )


@pytest.mark.slow
def test_what_the_network_sees_has_mean_0_and_variance_1(run):
    facts = load_file(run / "normaliser.safetensors")
    seen = Normaliser.from_facts(facts)(pooled(task_of(resolve(CHOSEN))).float())
    assert abs(float(seen.mean())) < 1e-5
    assert float(seen.std(correction=0)) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_a_run_keeps_what_its_predictions_need(run):
    trained = fedbary.load(run, own_code=True)
    examples = trained.task.evaluation_examples()
    assert examples.x.dtype == torch.uint8
    mean, std = trained.facts["mean"].float(), trained.facts["std"].float()
    raw = trained.settings.model_copy(update={"normalise": "none"})
    by_hand = (examples.x.float() / 255 - mean) / std
    shown = {}
    for name, settings, facts, x in (
        ("run", trained.settings, trained.facts, examples.x),
        ("hand", raw, {}, by_hand),
    ):
        task, last = task_of(settings), trained.rounds[-1]
        outcome = fedbary.tasks.Outcome(2, trained.network, trained.predictive, last, [])
        shown[name] = task.predict(outcome, x, facts, 0).probs
    assert torch.allclose(shown["run"], shown["hand"], atol=1e-5)
    last = lines(run)[-1]
    accuracy = trained.task.judged(trained.predict(examples, samples=50), examples.y)["accuracy"]
    assert accuracy == pytest.approx(last["accuracy"], abs=0.15)
    assert 0 <= last["ood"]["auroc_entropy"] <= 1


def test_sums_over_parts_are_those_of_the_whole_in_bytes_and_in_floats():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (2500, 3, 5, 6), np.uint8))
    shift = torch.tensor([0.1, 0.5, 0.9]).double()
    whole, parts = pixel_sums(x, shift), pixel_sums(x[:700], shift) + pixel_sums(x[700:], shift)
    assert whole.count == parts.count == 2500 * 30
    for name in ("total", "squares"):
        assert torch.allclose(getattr(whole, name), getattr(parts, name), rtol=1e-12)
    in_floats = pixel_sums(x.float() / 255, shift)
    assert torch.allclose(whole.mean, in_floats.mean)
    scaled = Normaliser.from_sums(whole)
    assert torch.allclose(scaled(x), scaled(x.float() / 255), atol=1e-6)
    assert Normaliser.from_facts(scaled.facts()) == scaled


def test_sums_that_no_pixels_have_are_not_believed():
    shift = torch.zeros(1).double()
    honest = _sums.told(pixel_sums(torch.ones(3, 1, 5, 5), shift))
    assert _sums.read(honest, 3, shift, pixels=25).count == 75
    for wrong in (
        {**honest, "count": 76},
        {**honest, "total": [80.0]},
        {**honest, "total": [0.0], "squares": [1e9]},
        {**honest, "total": [float("nan")]},
    ):
        with pytest.raises(ValueError, match="rows|numbers"):
            _sums.read(wrong, 3, shift, pixels=25)


def test_settings_that_do_not_go_with_it_are_refused():
    with pytest.raises(SettingError, match="normalise: 'channels';.*none for pixels=signed"):
        resolve({"normalise": "channels", "pixels": "signed"})
    with pytest.raises(SettingError, match="normalise: 'pixels';.*none, channels"):
        resolve({"normalise": "pixels"})
    assert task_of(resolve({"normalise": "none"})).facts == ""
