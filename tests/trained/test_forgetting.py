"""A site that withdraws: the run is that of a federation in which it never was."""

import functools
import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from every_method import OF_NUMBERS
from hostile_site import killed_at
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from runs_of import lines, posterior, same, tensors
from runs_of_sums import RUNS, chosen, run_of

import fedbary
from fedbary.commands.use import forget
from fedbary.data.standardise import Standardiser, Sums, renewed
from fedbary.errors import SettingError
from fedbary.methods import METHODS
from fedbary.methods._sums import sites_of, state_of
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.runs.conformal_kept import CONFORMAL
from fedbary.runs.location import read_rounds
from fedbary.runs.resume import lengthen
from fedbary.server_app.engine.inline import run_inline

FACTS = {"images": "normaliser", "tables": "standardiser", "numbers": "standardiser"}
GONE = "partition 1"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes of a kind a run of three sites, one of two of them, and the first without the third."""
    place = tmp_path_factory.mktemp("runs")

    @functools.cache
    def make(name):
        run_inline(chosen(name), place / name)
        run_of(chosen(name), (0, 2), place / f"{name}-two")
        forget(place / name, GONE, place / f"{name}-left")
        return place

    return make


@pytest.mark.parametrize("name", FACTS)
def test_what_is_left_is_the_run_of_the_others_to_rounding(name, made):
    two, left = (made(name) / f"{name}-{which}" for which in ("two", "left"))
    one, other = (tensors(folder, FACTS[name]) for folder in (left, two))
    assert one.keys() == other.keys()
    for key, tensor in one.items():
        torch.testing.assert_close(tensor, other[key], rtol=1e-5, atol=1e-5)
    trained = [fedbary.load(folder) for folder in (left, two)]
    x = trained[0].evaluation_examples()
    one, other = (by.predict(x) for by in trained)
    for score in ("probs",) if hasattr(one, "probs") else ("mean", "var"):
        torch.testing.assert_close(getattr(one, score), getattr(other, score), rtol=1e-3, atol=1e-4)
    recorded = [read_rounds(folder)[-1]["nll"] for folder in (left, two)]
    assert recorded[0] == pytest.approx(recorded[1], rel=1e-4)


def test_without_a_standardisation_it_is_so_bit_for_bit(made):
    left, two = made("pixels") / "pixels-left", made("pixels") / "pixels-two"
    assert same(posterior(left), posterior(two))
    held = [load_checkpoint(folder, "last").strategy for folder in (left, two)]
    sums = [{k: t for k, t in one.items() if k.startswith("method.")} for one in held]
    assert same(*sums)


@pytest.mark.parametrize("name", RUNS)
def test_nothing_of_the_site_is_left_but_its_name_and_how_much_it_held(name, made):
    folders = made(name)
    left = folders / f"{name}-left"
    content = yaml.safe_load((left / "settings.yaml").read_text())
    (note,) = content.pop("forgotten")
    assert (note["site"], note["run"], note["round"]) == (GONE, name, 1)
    (held,) = (c for c in lines(folders / name)[1]["clients"] if c["site"] == GONE)
    assert note["examples"] == held["num-examples"]
    assert content["sites"] == ["partition 0", "partition 2"] and content["nodes"] == 2
    assert len(content["label_counts"]) == 2
    for key in load_checkpoint(left, "last").strategy:
        assert "partition%201" not in key and GONE not in key
    assert GONE not in (left / "metrics.jsonl").read_text()
    assert GONE not in yaml.safe_dump(content)


def test_it_goes_on_without_the_site_and_with_one_that_comes_late(made, tmp_path):
    folders = made("pixels")
    left = shutil.copytree(folders / "pixels-left", tmp_path / "left")
    before = posterior(left)
    more = chosen("pixels", rounds=2, resume="last")
    lengthen(left, more)
    run_of(more, (0, 1, 2), left)  # the site is there again, and is left out
    assert same(posterior(left), before)
    assert [c["site"] for c in lines(left)[2]["clients"]] == ["partition 0", "partition 2"]

    late = shutil.copytree(folders / "pixels-two", tmp_path / "late")
    lengthen(late, more)
    run_of(more, (0, 1, 2), late)
    assert same(posterior(late), posterior(folders / "pixels"))


def test_a_temperature_is_gone_and_a_histogram_subtracted_and_both_are_found_again(
    tmp_path, capsys
):
    settings = chosen("pixels", calibrate="temperature", conformal=0.9)
    run_inline(settings, tmp_path / "run")
    forget(tmp_path / "run", GONE)
    left = tmp_path / "run-without-partition-1"
    said = capsys.readouterr().err
    assert "temperature counted partition 1" in said and "sets are of the other sites" in said
    before, after = (fedbary.load(folder) for folder in (tmp_path / "run", left))
    gone = before.sites[GONE].scores
    assert torch.equal(after.thresholds().counts, before.thresholds().counts - gone)
    assert GONE not in (left / CONFORMAL).read_text()
    assert "temperature" in lines(tmp_path / "run")[-1] and "temperature" not in lines(left)[-1]
    more = settings.model_copy(update={"rounds": 2, "resume": "last"})
    lengthen(left, more)
    run_of(more, (0, 1, 2), left)
    two = run_of(settings, (0, 2), tmp_path / "two")
    assert lines(left)[-1]["temperature"] == pytest.approx(lines(two)[-1]["temperature"])
    sets = [json.loads((folder / CONFORMAL).read_text()) for folder in (left, two)]
    assert sets[0]["thresholds"] == sets[1]["thresholds"] and sets[0]["sites"] == sets[1]["sites"]


def test_two_sites_are_forgotten_one_after_the_other(made, tmp_path):
    folders = made("pixels")
    left = shutil.copytree(folders / "pixels-left", tmp_path / "left")
    forget(left, "partition 0", tmp_path / "one")
    alone = run_of(chosen("pixels"), (2,), tmp_path / "alone")
    assert same(posterior(tmp_path / "one"), posterior(alone))
    notes = yaml.safe_load((tmp_path / "one" / "settings.yaml").read_text())["forgotten"]
    assert [note["site"] for note in notes] == [GONE, "partition 0"]
    for site, why in (("partition 2", "one of several sites"), (GONE, "not forgotten already")):
        with pytest.raises(SettingError, match=why):
            forget(tmp_path / "one", site, tmp_path / "none")


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("name", "site", "where", "why"),
    [
        ("pixels", "nobody", "new", "site: 'nobody'; expected .* partition 0, partition 1"),
        ("pixels-left", GONE, "new", "site: 'partition 1'; expected .* not forgotten already"),
        ("pixels", GONE, "pixels-left", "output: .*does not exist yet"),
        ("gone", GONE, "new", "run: .*there is none of this name"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(name, site, where, why, made):
    folders = made("pixels")
    before = content(folders / name) if name != "gone" else {}
    with pytest.raises(SettingError, match=why) as raised:
        forget(folders / name, site, folders / where)
    assert "\n" not in str(raised.value) and not (folders / "new").exists()
    assert name == "gone" or content(folders / name) == before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "FedProx", "local_epochs": 1}, "method: 'FedProx'; expected .*LDA, Ridge"),
        ({"method": "PVI", "local_epochs": 1, "bayesian_layers": 1}, "method: 'PVI'; .*=full"),
        ({"model": "mlp", "bayesian_layers": 0}, "standardised inputs before the layer"),
        ({"max_weight_ratio": 1.5}, "max_weight_ratio: 1.5; expected none"),
    ],
)
def test_a_run_whose_sums_do_not_tell_is_refused(changes, why, tmp_path, recwarn):
    run_inline(chosen("images", **changes), tmp_path / "run")
    with pytest.raises(SettingError, match=why):
        forget(tmp_path / "run", GONE, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_killed_at_its_end_it_leaves_no_folder(made, tmp_path):
    folders = made("pixels")

    with killed_at("fedbary.trained.forgetting.note_forgotten"):
        forget(folders / "pixels", GONE, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@given(seed=st.integers(0, 10**6), count=st.integers(3, 40))
def test_the_standardisation_of_some_rows_follows_from_sums_in_the_unit_of_all(seed, count):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(rng.normal(0, 5, 4), rng.uniform(0.1, 9, 4), (count, 4)))
    rows[: count // 2, 3] = 7.0  # constant among those that are left, if they are enough
    some = rows[: max(1, count // 2)]
    scale = Standardiser.from_sums(Sums.of(rows))
    z = (some - scale.mean) / scale.std
    found, factor = renewed(scale, z.mean(0), z.square().mean(0))
    direct = Standardiser.from_sums(Sums.of(some))
    torch.testing.assert_close(found.mean, direct.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.std, direct.std, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close((z - z.mean(0)) / factor, (some - direct.mean) / direct.std)


@pytest.mark.parametrize("name", ["LDA", "Ridge", "ConjugateGaussian"])
@given(seed=st.integers(0, 10**6), count=st.integers(1, 20))
@examples(max_examples=10)
def test_sums_of_scaled_columns_are_scaled_sums(name, seed, count):
    method, generator = METHODS[name](), torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator).double()
    of_numbers = name in OF_NUMBERS
    y = torch.randn(count, generator=generator).double()
    y = y if of_numbers else torch.randint(4, (count,), generator=generator)
    columns = torch.cat([x, y[:, None]], 1) if of_numbers else x

    def means(x, y):
        return {key: total / count for key, total in method.products(x, y, 4).items()}

    held = means(x, y)
    mean, squares = method.columns(held)
    torch.testing.assert_close(mean, columns.mean(0))
    torch.testing.assert_close(squares, columns.square().mean(0))
    shift, scale = torch.randn(columns.shape[1]).double(), torch.rand(columns.shape[1]).double() + 1
    moved = (columns - shift) / scale
    expected = means(moved[:, :3], moved[:, 3] if of_numbers else y)
    found = method.rescaled(held, shift, scale)
    assert found.keys() == expected.keys()
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, expected[key].double())


@given(st.lists(st.text(min_size=1, max_size=9), unique=True, max_size=5))
def test_a_state_tells_its_sites_apart_by_any_names(names):
    sites = {name: (float(k + 1), {"sums/x": torch.ones(k + 1)}) for k, name in enumerate(names)}
    found = sites_of(state_of(sites))
    assert found.keys() == sites.keys()
    for name, (weight, held) in found.items():
        assert weight == sites[name][0] and torch.equal(held["sums/x"], sites[name][1]["sums/x"])


def test_the_distance_to_the_classes_is_without_the_site_too(made):
    left, two = made("pixels") / "pixels-left", made("pixels") / "pixels-two"
    assert same(tensors(left, "background"), tensors(two, "background"))


def test_without_a_full_site_further_rounds_end_at_the_mode_of_the_others(tmp_path):
    sites = {"method": "PVI", "inference": "laplace", "covariance": "full", "speeds": "uniform"}
    sites |= {"train_fraction": 0.3}
    run_inline(chosen("pixels", **sites), tmp_path / "all")
    left = tmp_path / "left"
    forget(tmp_path / "all", GONE, left)
    assert not any("partition%201" in key for key in load_checkpoint(left, "last").strategy)
    assert not same(posterior(tmp_path / "all"), posterior(left))
    more = chosen("pixels", **sites, rounds=4, resume="last")
    lengthen(left, more)
    run_inline(more, left)
    for line in lines(left)[1:]:
        assert {c["site"] for c in line["clients"]} == {"partition 0", "partition 2"}
        assert line["virtual_seconds"] >= 0
    two = run_of(chosen("pixels", **sites, rounds=4), (0, 2), tmp_path / "two")
    for name, tensor in posterior(two).items():
        torch.testing.assert_close(posterior(left)[name], tensor, rtol=1e-3, atol=1e-3)


def test_a_table_whose_empty_cells_were_filled_is_refused_in_the_setting_s_own_word(tmp_path):
    rows = ["a,b,y", *(f"{k % 7},{k % 5 or ''},{'yes' if k % 3 else 'no'}" for k in range(600))]
    (tmp_path / "x.csv").write_text("\n".join(rows) + "\n")
    words = {"dataset": str(tmp_path / "x.csv"), "missing": "mean"}
    run_inline(chosen("tables", **words), tmp_path / "run")
    with pytest.raises(SettingError, match="missing= mean, median or indicator: .* new run"):
        forget(tmp_path / "run", GONE, tmp_path / "new")
