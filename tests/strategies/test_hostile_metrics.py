"""Metrics and weights that a site may send: none raises, none wins, none owns the means."""

import itertools
import math

import pytest
from every_method import NIGHT
from hostile_site import run_with_a_hostile_site
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_of import lines, posterior, same, tensors

from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

CLASSIFICATION = {
    "engine": "inline", "clients": 2, "rounds": 2, "local_epochs": 1, "samples": 2,
    "pictures": False, "bayesian_layers": 1, "batch_size": 512,
}  # fmt: skip
REGRESSION = {
    "task": "regression", "engine": "inline", "pictures": False, "clients": 2, "rounds": 2,
    "local_epochs": 1,
}  # fmt: skip
TABLES = {**REGRESSION, "task": "tables", "partition": "iid", "samples": 2}
VARIATIONAL = {**REGRESSION, "protocol": "regression-vi"}

NUMBERS = st.one_of(
    st.floats(),
    st.floats(allow_nan=False, allow_infinity=False, min_value=1e290),
    st.integers(-(10**400), 10**400),
    st.integers(-3, 3),
)
VALUES = st.one_of(NUMBERS, st.lists(st.integers(), max_size=3), st.lists(st.floats(), max_size=3))
KEYS = st.one_of(
    st.sampled_from(
        ["num-examples", "local-accuracy", "accuracy", "nll", "ece", "brier", "train-seconds",
         "train-nll", "kl", "train-mse", "partition-id", "count", "total", "squares", "spread"]
    ),
    st.text(max_size=5),
)  # fmt: skip
CHANGES = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), VALUES), st.booleans()), min_size=1, max_size=4
)
"""Keys with values, None to drop a key, and whether a list becomes as long as what it replaces."""


def changed(reply, changes):
    metrics = reply.content["metrics"]
    for key, value, stretched in changes:
        held = metrics.get(key)
        if value is None:
            metrics.pop(key, None)
        elif stretched and value and isinstance(value, list) and isinstance(held, list):
            metrics[key] = list(itertools.islice(itertools.cycle(value), len(held)))
        else:
            metrics[key] = value


@pytest.mark.slow
@pytest.mark.parametrize("base", [CLASSIFICATION, REGRESSION, TABLES, VARIATIONAL], ids=str)
@settings(max_examples=100 if NIGHT else 8, print_blob=True)
@given(data=st.data())
def test_whatever_metrics_one_of_two_sites_sends_every_round_counts_the_other(
    base, data, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("hostile") / "run"

    def spoil(action, reply):
        if action != "query":
            changed(reply, data.draw(CHANGES, label=action))

    run_with_a_hostile_site(resolve(base), folder, spoil)
    rounds = lines(folder)[1:]
    assert len(rounds) == 2
    for line in rounds:
        assert line["admitted"] >= 1
        assert "partition 1" in [client["site"] for client in line["clients"]]
        if base in (CLASSIFICATION, TABLES):
            assert 0 <= line["local_models"]["weighted_accuracy"] <= 1
            assert 0 <= line["local_models"]["worst10_accuracy"] <= 1
            held_out = line["held_out"]
            assert "partition 1" in [client["site"] for client in held_out["clients"]]
            assert 0 <= held_out["weighted_accuracy"] <= 1


@pytest.mark.parametrize("weight", [10**12, 1e12, 1.7e308, 299.5 * 1e3])
def test_a_site_that_claims_more_examples_than_it_said_counts_as_it_said(weight, tmp_path):
    """The lie changes no bit of the model, nor of the scores on what sites hold out."""
    chosen = resolve({**CLASSIFICATION, "dataset": "digits"})
    bound = 1e300

    def spoil(action, reply):
        if action in ("train", "evaluate"):
            reply.content["metrics"]["num-examples"] = weight

    run_with_a_hostile_site(chosen, tmp_path / "lied", spoil)
    run_inline(chosen, tmp_path / "honest")
    lied, honest = lines(tmp_path / "lied")[-1], lines(tmp_path / "honest")[-1]
    if weight > bound:
        assert all("num-examples" in reason for reason in lied["refused"])
        assert lied["admitted"] == 1
        return
    assert same(posterior(tmp_path / "lied"), posterior(tmp_path / "honest"))
    for key in ("held_out", "local_models"):
        assert lied[key]["weighted_accuracy"] == honest[key]["weighted_accuracy"]


def test_a_site_that_lied_from_the_start_is_held_by_the_ratio(tmp_path):
    """Told 10^12 examples before training the roster has no other count: the ratio has."""
    chosen = resolve({**CLASSIFICATION, "clients": 3, "max_weight_ratio": 1.0, "holdout": 0.1})

    def spoil(action, reply):
        metrics = reply.content["metrics"]
        if action == "query":
            metrics["label-counts"] = [10**11] * 10
        if action in ("query", "train"):
            metrics["num-examples"] = 9 * 10**11

    run_with_a_hostile_site(chosen, tmp_path / "run", spoil)
    (first, *others) = lines(tmp_path / "run")[-1]["clients"]
    assert first["num-examples"] <= max(client["num-examples"] for client in others)


def assert_as_silent(chosen, folder, spoil, asked):
    """Hold that the sums of a site which spoils them count as if it had left some out."""

    def silent(action, reply):
        if action == "ask":
            reply.content["metrics"].pop(asked, None)

    for name, way in (("spoilt", spoil), ("silent", silent)):
        run_with_a_hostile_site(chosen, folder / name, way)
    one, other = (tensors(folder / name, "standardiser") for name in ("spoilt", "silent"))
    assert same(one, other)


@pytest.mark.in_turn
@pytest.mark.parametrize("spoilt", ["total", "squares", "spread", "count"])
@pytest.mark.parametrize("value", [1.7e308, -1.7e308, math.inf, 10**400])
def test_sums_that_no_rows_have_are_left_out(spoilt, value, tmp_path):
    """The one site's numbers are as if it had not been asked."""

    def with_value(action, reply):
        metrics = reply.content["metrics"]
        if action == "ask" and spoilt in metrics:
            held = metrics[spoilt]
            metrics[spoilt] = [value] * len(held) if isinstance(held, list) else value

    assert_as_silent(resolve({**REGRESSION, "rounds": 1}), tmp_path, with_value, spoilt)
    noise = [lines(tmp_path / run)[-1]["noise_var"] for run in ("spoilt", "silent")]
    assert noise[0] == noise[1]


@pytest.mark.parametrize("scheme", ["none", "balanced"])
@pytest.mark.parametrize(("total", "squares"), [(-1e6, 1e280), (0.0, 0.0), (1e3, 1e280)])
def test_a_site_does_not_choose_the_rows_of_classes(total, squares, scheme, tmp_path):
    """The columns of classes have possible sums of numbers, but not of ones and zeros."""

    def invented(action, reply):
        metrics = reply.content["metrics"]
        if action == "ask":
            metrics["total"] = [*metrics["total"][:-2], total, total]
            metrics["squares"] = [*metrics["squares"][:-2], squares, squares]

    chosen = resolve({**TABLES, "rounds": 1, "class_weights": scheme})
    assert_as_silent(chosen, tmp_path, invented, "total")
