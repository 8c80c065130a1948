"""Principal components by sums over the sites are those of all their features together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from fedbary.data.images import Normaliser, pixel_sums
from fedbary.data.sites import Site
from fedbary.data.standardise import Standardiser, dependent, principal
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import _sums, task_of


def asked_of(parts, scale):
    """Hold the dialogue with sites that hold parts."""
    dialogue = _sums.ask_moments(scale, sum(map(len, parts)))
    question = next(dialogue)
    answers = [question.read(_sums.answer_moments(x, question.config), len(x)) for x in parts]
    with pytest.raises(StopIteration) as end:
        dialogue.send(answers)
    return end.value.value


@given(st.integers(0, 2**32), st.integers(2, 4))
def test_whitened_components_of_few_rows_stay_small_for_new_ones(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    z = z - z.mean(0)
    by_rows = principal(z.T @ z / rows, 6, True)
    told = torch.linalg.matrix_rank(z)
    assert torch.equal(by_rows[:, told:], torch.zeros(6, 6 - told).double())
    torch.testing.assert_close((z @ by_rows).square().mean(0)[:told], torch.ones(told).double())


@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans())
def test_components_by_sums_are_those_of_the_pooled_features(seed, sites, whiten):
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(5, 5, generator=generator) + torch.eye(5)
    x = torch.randn(60, 5, generator=generator) @ mixed + 100
    owner = torch.randint(sites, (60,), generator=generator)
    parts = [x[owner == site] for site in range(sites) if (owner == site).any()]
    scale = Standardiser.from_sums(pixel_sums(x, x.mean(0).double()))
    by_sums = principal(asked_of(parts, scale), 3, whiten)
    z = (x.double() - x.double().mean(0)) / x.double().std(0, correction=0)
    scores = z @ by_sums
    u, singular, _ = torch.linalg.svd(z, full_matrices=False)
    known = u[:, :3] * (60**0.5 if whiten else singular[:3])
    assert torch.allclose(scores.T @ scores, known.T @ known, rtol=1e-5, atol=1e-6)
    assert torch.allclose((scores * known).sum(0).abs(), (known * known).sum(0), rtol=1e-5)


@given(st.integers(0, 2**32), st.lists(st.booleans(), min_size=1, max_size=9))
def test_columns_that_others_determine_are_found_with_their_weights(seed, combined):
    generator, columns = torch.Generator().manual_seed(seed), list[torch.Tensor]()
    for follows in combined:
        own = torch.randn(40, generator=generator, dtype=torch.float64)
        if follows and columns:
            own = torch.stack(columns, 1) @ torch.randn(len(columns), generator=generator).double()
        columns.append(own / own.norm())
    x = torch.stack(columns, 1)
    found = {place: (kept, w) for place, kept, w in dependent(x.T @ x, 1e-8)}
    assert [*found] == [place for place, follows in enumerate(combined) if follows and place]
    for place, (kept, weights) in found.items():
        assert torch.allclose(x[:, kept] @ weights, x[:, place], atol=1e-6)
        assert not {*kept} & found.keys()


def test_moments_that_no_rows_have_are_refused():
    scale = Standardiser(torch.zeros(2).double(), torch.ones(2).double())
    nan, most = float("nan"), 7.1  # of seven rows
    for wrong in ([1.0, 2.0, 1.0], [1.0, 0.0], [1.0, 0.0, nan], [most, 0.0, 1.0], [1.0, 0.0, most]):
        question = next(_sums.ask_moments(scale, 7))
        with pytest.raises(ValueError, match="moments"):
            question.read({"count": 3, "moments": wrong}, 3)


def test_a_run_trains_on_as_many_components_as_it_names(tmp_path):
    chosen = resolve(
        {
            "engine": "inline", "device": "cpu", "pictures": False, "dataset": "own_data:bars",
            "clients": 3, "rounds": 1, "local_epochs": 1, "samples": 2, "min_examples": 20,
            "backbone": "own_backbones:tiny", "data_dir": str(tmp_path), "features": 4,
            "whiten": True,
        }
    )  # fmt: skip
    run_inline(chosen, tmp_path / "run")
    facts = load_file(tmp_path / "run" / "normaliser.safetensors")
    task = task_of(chosen)
    shards = [_shard(task, client) for client in range(3)]
    seen = Normaliser.from_facts(facts)(torch.cat(shards))
    assert seen.shape[1] == 4
    assert torch.allclose(seen.T @ seen / len(seen), torch.eye(4), atol=1e-3)
    posterior = load_file(tmp_path / "run" / "posterior.safetensors")
    assert posterior["output.weight_mean"].shape == (8, 4)


def _shard(task, client):
    return task.shard(Site(f"partition {client}", "", client, 3), task.signature()).x
