"""AUROC, sensitivity and the ROC curve against other code, with ties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from fedbary.errors import SettingError
from fedbary.figures.roc_curves import roc_curves
from fedbary.scores.metrics import Roc, evaluate
from fedbary.scores.tables import SCORES, left_out, rocs, said, score
from fedbary.tasks._classes import means

tied = st.lists(
    st.tuples(st.integers(0, 6).map(lambda k: k / 6), st.booleans()), min_size=2, max_size=60
)
untied = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=60)
specificities = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0]), st.floats(0, 1))


def curve_of(rows):
    scores, positive = (np.array(part) for part in zip(*rows, strict=True))
    return Roc.of(torch.from_numpy(scores), torch.from_numpy(positive)), scores, positive


@given(st.one_of(tied, untied), specificities)
def test_curve_is_scikit_learn_s_and_sensitivity_is_what_a_threshold_attains(rows, specificity):
    curve, scores, positive = curve_of(rows)
    if positive.all() or not positive.any():
        assert math.isnan(curve.auroc) and math.isnan(curve.sensitivity(specificity))
        return
    assert curve.auroc == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve.false_positives / (~positive).sum(), fpr)
    np.testing.assert_allclose(curve.true_positives / positive.sum(), tpr)
    attained = max(
        np.mean(scores[positive] >= threshold)
        for threshold in [*scores, np.inf]
        if np.mean(scores[~positive] < threshold) >= specificity - 1e-9
    )
    assert curve.sensitivity(specificity) == pytest.approx(attained, abs=1e-12)


@given(tied)
def test_auroc_is_the_probability_of_the_right_order_and_blind_to_monotone_maps(rows):
    curve, scores, positive = curve_of(rows)
    if not curve.defined:
        return
    gap = scores[positive][:, None] - scores[~positive][None]
    assert curve.auroc == pytest.approx(np.mean((gap > 0) + 0.5 * (gap == 0)), abs=1e-12)
    other = Roc.of(torch.from_numpy(np.exp(5 * scores) - 3), torch.from_numpy(positive))
    assert other.auroc == curve.auroc and other.sensitivity(0.8) == curve.sensitivity(0.8)
    reverse = Roc.of(torch.from_numpy(-scores), torch.from_numpy(positive))
    assert reverse.auroc == pytest.approx(1 - curve.auroc, abs=1e-12)


def test_rows_of_one_score_are_called_alike():
    """Nine of ten negatives tie with all positives: no threshold finds some of them alone."""
    curve, *_ = curve_of([(0.5, True)] * 4 + [(0.5, False)] * 9 + [(0.1, False)])
    assert curve.auroc == pytest.approx(0.55)
    assert curve.sensitivity(0.1) == 1 and curve.sensitivity(0.11) == 0


@pytest.mark.parametrize("negatives", [10, 20, 60, 100, 1000])
def test_a_specificity_that_is_met_exactly_counts(negatives):
    """Where specificity · negatives is whole, rounding must not ask for one row more."""
    scores = [(k / negatives, False) for k in range(negatives)] + [(1.0, True)]
    scores += [((k + 0.5) / negatives, True) for k in range(negatives)]
    curve, *_ = curve_of(scores)
    for spared in range(negatives + 1):
        found = curve.sensitivity(spared / negatives)
        called = negatives - max(spared, 1) + 2
        assert found == pytest.approx(called / (negatives + 1)), spared


def test_no_fraction_is_refused():
    curve, *_ = curve_of([(0.2, True), (0.1, False)])
    for specificity in (-0.1, 1.1, math.nan, 95):
        with pytest.raises(SettingError, match="specificity: .*0 to 1"):
            curve.sensitivity(specificity)
    with pytest.raises(ValueError, match="finite score"):
        Roc.of(torch.tensor([0.1, math.nan]), torch.tensor([True, False]))


def test_classes_that_a_mean_leaves_out_are_named():
    probs, labels = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 0, 1])
    curves = dict(zip("abc", rocs(probs, labels).values(), strict=True))
    assert left_out(curves).endswith("over 2 of 3 classes: all or none of the examples are c")
    assert left_out({name: curves[name] for name in "ab"}) == ""


def predictions(seed, n, classes, bits):
    """Probabilities in steps of 2^-bits, which are exact: many tie, all sum to one."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(classes), n)
    parts = np.stack([rng.multinomial(2**bits, share) for share in shares])
    return torch.from_numpy(parts / 2**bits), torch.from_numpy(rng.integers(classes, size=n))


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(0, 9), specificities)
def test_scores_are_scikit_learn_s_one_versus_rest(seed, classes, bits, specificity):
    probs, labels = predictions(seed, 80, classes, bits)
    assert len(labels.unique()) == classes
    found = score(probs, labels, 10, specificity)
    assert tuple(found) == SCORES
    assert {name: found[name] for name in SCORES[:4]} == evaluate(probs, labels, 10)
    p, y = probs.double().numpy(), labels.numpy()
    truth = {1: y == 1} if classes == 2 else {c: y == c for c in range(classes)}
    areas = [roc_auc_score(positive, p[:, c]) for c, positive in truth.items()]
    assert found["auroc"] == pytest.approx(np.mean(areas), abs=1e-9)
    if classes > 2:
        ovr = roc_auc_score(y, p, multi_class="ovr", average="macro")
        assert found["auroc"] == pytest.approx(ovr, abs=1e-9)
    best = []
    for c, positive in truth.items():
        fpr, tpr, _ = roc_curve(positive, p[:, c], drop_intermediate=False)
        best.append(tpr[1 - fpr >= specificity - 1e-9].max())
    assert found["sensitivity"] == pytest.approx(np.mean(best), abs=1e-9)


def test_a_class_without_a_row_is_left_out_and_one_class_alone_has_no_score():
    probs, labels = predictions(0, 60, 3, 4)
    probs, labels = probs[labels < 2], labels[labels < 2]
    areas = [roc_auc_score(labels.numpy() == c, probs[:, c].numpy()) for c in (0, 1)]
    assert score(probs, labels)["auroc"] == pytest.approx(np.mean(areas))
    alone = score(probs, torch.zeros_like(labels))
    assert math.isnan(alone["auroc"]) and math.isnan(alone["sensitivity"])
    assert 0 <= alone["accuracy"] <= 1


def test_clients_scores_are_weighted_means_of_those_that_have_one():
    one = {**dict.fromkeys(SCORES, 1.0), "num-examples": 1}
    two = {"accuracy": 0.0, "num-examples": 3}
    found = means([one, two], SCORES)
    assert found["accuracy"] == 0.25 and found["auroc"] == 1
    assert math.isnan(means([two], SCORES)["auroc"])


def test_the_line_has_the_scores_that_count():
    line = said({**dict.fromkeys(SCORES, 0.5), "sensitivity": 0.875}, 0.975)
    assert "87.50 %" in line and "97.5 %" in line and "AUROC 50.00 %" in line


@pytest.mark.parametrize("classes", [2, 4])
def test_picture_has_a_curve_a_class(classes, tmp_path):
    probs, labels = predictions(1, 50, classes, 4)
    curves = {f"class {label}": roc for label, roc in rocs(probs, labels).items()}
    curves["absent"] = Roc.of(probs[:, 0], labels < 0)
    figure = roc_curves(curves, 0.9, "Test rows")
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert [line.split(":")[0] for line in legend] == [name for name in curves if name != "absent"]
    figure.savefig(tmp_path / "roc.png")
