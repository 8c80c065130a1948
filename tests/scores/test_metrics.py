"""Metrics against hand-written numpy, and their laws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbary.errors import SettingError
from fedbary.scores.metrics import (
    NLL_RANGE,
    accuracy_after_rejection,
    auroc,
    ece_by_chance,
    evaluate,
    fairness,
    reliability,
)


def predictions(seed: int, n: int = 500, classes: int = 5, scale: float = 2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=generator)
    return logits.softmax(1), torch.randint(classes, (n,), generator=generator)


def by_hand(probs: torch.Tensor, labels: torch.Tensor, bins: int) -> dict[str, float]:
    p, y = probs.double().numpy(), labels.numpy()
    confidence, correct = p.max(1), p.argmax(1) == y
    ece = 0.0
    edges = [*np.linspace(0, 1, bins + 1)[:-1], np.inf]
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = (confidence >= low) & (confidence < high)
        if inside.any():
            ece += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return {
        "accuracy": correct.mean(),
        "nll": -np.log(p[np.arange(len(y)), y] + 1e-8).mean(),
        "ece": ece,
        "brier": ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean(),
    }


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 300),
    classes=st.integers(2, 12),
    scale=st.floats(0, 8),
    bins=st.integers(1, 100),
)
def test_agreement_with_numpy_and_bounds(seed, n, classes, scale, bins):
    probs, labels = predictions(seed, n, classes, scale)
    scores = evaluate(probs, labels, bins)
    assert scores.keys() == {"accuracy", "nll", "ece", "brier"}
    assert scores == pytest.approx(by_hand(probs, labels, bins), abs=1e-5)
    assert 0 <= scores["ece"] <= 1
    assert -1e-6 <= scores["brier"] <= 2 + 1e-6
    assert 0 <= scores["accuracy"] <= 1
    assert -1e-6 <= scores["nll"] <= -np.log(1e-8) + 1e-6


@given(seed=st.integers(0, 10**6), scale=st.floats(0, 20), bins=st.integers(1, 100))
def test_reliability_adds_up_to_the_ece(seed, scale, bins):
    probs, labels = predictions(seed, 300, 4, scale)
    diagram = reliability(probs, labels, bins)
    assert len(diagram.count) == len(diagram.accuracy) == len(diagram.confidence) == bins
    assert diagram.count.sum() == 300
    gaps = diagram.count / 300 * np.abs(diagram.accuracy - diagram.confidence)
    assert gaps.sum() == pytest.approx(diagram.ece)
    assert diagram.ece == pytest.approx(evaluate(probs, labels, bins)["ece"], abs=1e-5)
    held = diagram.count > 0
    low = np.arange(bins)[held] / bins
    assert (diagram.confidence[held] >= low - 1e-6).all()
    assert (diagram.confidence[held] <= low + 1 / bins + 1e-6).all()


@pytest.mark.parametrize(
    ("off", "accuracy", "nll", "ece", "brier"), [(0, 1, 0, 0, 0), (1, 0, -np.log(1e-8), 1, 2)]
)
def test_certain_predictions_have_the_ends_of_the_scores(off, accuracy, nll, ece, brier):
    labels = torch.arange(20) % 4
    scores = evaluate(torch.eye(4)[(labels + off) % 4], labels)
    expected = {"accuracy": accuracy, "nll": nll, "ece": ece, "brier": brier}
    assert scores == pytest.approx(expected, abs=1e-7)
    assert NLL_RANGE[0] < scores["nll"] < NLL_RANGE[1]  # below 0 by the offset, and still admitted


def test_order_of_the_examples_and_classes_does_not_matter():
    probs, labels = predictions(3)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    renamed = torch.tensor([4, 2, 0, 1, 3])
    scores = evaluate(probs, labels)
    assert evaluate(probs[order], labels[order]) == pytest.approx(scores, abs=1e-5)
    assert evaluate(probs[:, renamed], renamed.argsort()[labels]) == pytest.approx(scores, abs=1e-5)


def test_inputs_are_not_changed():
    probs, labels = predictions(0)
    before = probs.clone(), labels.clone()
    evaluate(probs, labels)
    reliability(probs, labels)
    assert torch.equal(probs, before[0]) and torch.equal(labels, before[1])


def test_confidence_on_an_edge_belongs_to_the_bin_above():
    probs = torch.tensor([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0], [0.74, 0.26]])
    labels = torch.tensor([0, 0, 0, 1])
    diagram = reliability(probs, labels, 4)
    assert diagram.count.tolist() == [0, 0, 2, 2]
    assert diagram.accuracy.tolist() == [0, 0, 0.5, 1]
    assert evaluate(probs, labels, 4)["ece"] == pytest.approx((0.24 + 0.25) / 4)


def test_certain_predictions_are_in_the_last_bin():
    probs = torch.tensor([[0.95, 0.05], [1.0, 0.0]])
    labels = torch.tensor([0, 1])
    assert reliability(probs, labels, 2).count.tolist() == [0, 2]
    assert evaluate(probs, labels, 2)["ece"] == pytest.approx(0.475)


def test_probability_a_rounding_above_one_counts_as_one():
    probs, labels = predictions(0)
    probs[0] = torch.tensor([1 + 1e-6, 0, 0, 0, 0])
    fixed = probs.clamp(max=1)
    assert evaluate(probs, labels) == evaluate(fixed, labels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_float_types(dtype):
    probs, labels = predictions(0)
    scores = evaluate(probs.to(dtype), labels)
    assert scores == pytest.approx(evaluate(probs, labels), abs=0.02)


PROBS, LABELS = predictions(0, n=10)


@pytest.mark.parametrize("score", [evaluate, reliability])
@pytest.mark.parametrize(
    ("probs", "labels", "said"),
    [
        (PROBS.index_fill(0, torch.tensor([2, 7]), math.nan), LABELS, "NaN or infinity in 2 of 10"),
        (PROBS.log(), LABELS, "no probabilities"),
        (2 * PROBS, LABELS, "no probabilities"),
        (PROBS, LABELS[:4], r"must be \(N, C\)"),
        (PROBS[:0], LABELS[:0], r"must be \(N, C\)"),
    ],
)
def test_what_is_no_prediction_is_refused(score, probs, labels, said):
    with pytest.raises(ValueError, match=said):
        score(probs, labels)
    with pytest.raises(SettingError) as caught:
        score(PROBS, LABELS, 0)
    assert caught.value.setting == "ece_bins"


def test_fairness_by_hand():
    accuracies = [0.9, 0.5, 0.7, 0.8]
    scores = fairness(accuracies, [1, 1, 2, 0])
    assert scores == pytest.approx({"weighted_accuracy": 2.8 / 4, "worst10_accuracy": 0.5})


@pytest.mark.parametrize(
    ("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (100, 10)]
)
def test_worst_tenth_is_rounded_up(clients, worst):
    accuracies = np.arange(clients)[::-1] / clients
    scores = fairness(accuracies, np.ones(clients))
    assert scores["worst10_accuracy"] == pytest.approx(np.arange(worst).mean() / clients)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 100)), min_size=1, max_size=40).flatmap(
        lambda rows: st.tuples(st.just(rows), st.permutations(rows))
    )
)
def test_fairness_laws(rows_and_permuted):
    rows, permuted = rows_and_permuted
    scores = fairness(*zip(*rows, strict=True))
    assert fairness(*zip(*permuted, strict=True)) == pytest.approx(scores)
    accuracies = [a for a, _ in rows]
    assert min(accuracies) - 1e-12 <= scores["worst10_accuracy"] <= np.mean(accuracies) + 1e-12
    assert min(accuracies) - 1e-12 <= scores["weighted_accuracy"] <= max(accuracies) + 1e-12


@pytest.mark.parametrize(
    ("accuracies", "weights"),
    [
        ([], []),
        ([0.5], [1, 1]),
        ([float("nan")], [1]),
        ([0.5], [0]),
        ([0.5, 0.5], [2, -1]),
        ([0.5], [float("inf")]),
    ],
)
def test_fairness_of_what_is_no_federation(accuracies, weights):
    with pytest.raises(ValueError, match="accurac"):
        fairness(accuracies, weights)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
)
def test_auroc_is_the_chance_that_the_foreign_input_scores_higher(inside, outside):
    pairs = [(i < o) + 0.5 * (i == o) for i in inside for o in outside]
    found = auroc(torch.tensor(inside).float(), torch.tensor(outside).float())
    if len({*inside, *outside}) == 1:
        assert found is None
    else:
        assert found == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.slow
@pytest.mark.parametrize("bins", [1, 15, 100])
def test_the_ece_by_chance_is_the_mean_over_labels_drawn_from_the_probabilities(bins):
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(400, 3, generator=generator).mul(2).softmax(1)
    drawn = torch.stack(
        [torch.multinomial(probs, 1, generator=generator)[:, 0] for _ in range(300)]
    )
    found = np.array([evaluate(probs, labels, bins)["ece"] for labels in drawn])
    standard_error = found.std(ddof=1) * (1 / len(found) + 1 / 300) ** 0.5
    by_chance = ece_by_chance(probs, bins, seed=0, repeats=300)
    assert abs(by_chance - found.mean()) < 4 * standard_error


def test_a_sure_model_has_no_ece_by_chance_and_more_examples_leave_less():
    assert ece_by_chance(torch.eye(5), 15, seed=0) == 0
    probs = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0)).softmax(1)
    few, many = (ece_by_chance(part, 15, seed=0) for part in (probs[:40], probs))
    assert many == pytest.approx(few / 10, rel=0.2)  # by 1/√N


def test_rejection_keeps_the_most_certain():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    labels = torch.tensor([0, 0, 1, 1])
    uncertainty = torch.tensor([0.1, 0.2, 0.4, 0.3])
    rejected = (0.0, 0.25, 0.5, 0.75, 0.99)
    found = accuracy_after_rejection(probs, labels, uncertainty, rejected)
    assert found == pytest.approx([0.5, 2 / 3, 1, 1, 1])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_equal_uncertainties_are_rejected_in_parts_whatever_their_order(order):
    index = torch.tensor(order)
    probs, labels = torch.tensor([[0.8, 0.2]] * 4)[index], torch.tensor([0, 0, 0, 1])[index]
    uncertainty = torch.tensor([0.1, 0.2, 0.2, 0.2])[index]
    found = accuracy_after_rejection(probs, labels, uncertainty, (0.0, 0.25, 0.5, 0.75))
    assert found == pytest.approx([3 / 4, (1 + 4 / 3) / 3, (1 + 2 / 3) / 2, 1])
