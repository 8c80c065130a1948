"""Class weights count all clients' rows, whatever lies beside a row, and cost calibration."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from fedbary.errors import SettingError
from fedbary.scores.metrics import evaluate
from fedbary.scores.tables import score
from fedbary.tasks.tables import class_weights, natural, weighted_cross_entropy

counts = st.lists(st.integers(0, 10_000), min_size=2, max_size=8).filter(any)


@given(counts)
def test_balanced_classes_weigh_alike_and_rows_weigh_one_in_the_mean(counts):
    held, weights = torch.tensor(counts).double(), class_weights("balanced", counts).double()
    assert torch.equal(class_weights("none", counts), torch.ones(len(counts)))
    totals = (held * weights)[held > 0]
    torch.testing.assert_close(totals, totals.mean().expand_as(totals), rtol=1e-5, atol=0)
    assert float((held * weights).sum() / held.sum()) == pytest.approx(1, rel=1e-5)
    assert weights.isfinite().all() and (weights > 0).all()


@pytest.mark.parametrize("wrong", [[0, 0], [3, -1]])
def test_no_counts_are_refused(wrong):
    with pytest.raises(ValueError, match="counts"):
        class_weights("balanced", wrong)
    with pytest.raises(SettingError, match="class_weights: 'rare'.*none, balanced"):
        class_weights("rare", [1, 2])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 39))
def test_the_loss_of_all_rows_is_the_sum_over_any_cut_of_them(labels, cut):
    """PyTorch's weighted mean is not: of a batch of one class it drops the weight altogether."""
    generator = torch.Generator().manual_seed(len(labels))
    logits = torch.randn(len(labels), 4, generator=generator).double()
    y, weights = torch.tensor(labels), torch.tensor([0.2, 1.0, 5.0, 9.0]).double()
    loss = weighted_cross_entropy(weights)
    whole = loss(logits, y) * len(y)
    by_row = weights[y] * functional.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(whole, by_row.sum())
    parts = [(a, b) for a, b in zip(logits.split(cut), y.split(cut), strict=True)]
    torch.testing.assert_close(sum(loss(a, b) * len(b) for a, b in parts), whole)


def test_weighted_probabilities_are_those_of_equal_classes_and_natural_undoes_it():
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(20_000, generator=generator) < 0.05).long()
    x = torch.randn(20_000, generator=generator).double() + 1.5 * labels
    weights = class_weights("balanced", torch.bincount(labels))

    def fitted(loss):
        parameters = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([parameters], max_iter=100, line_search_fn="strong_wolfe")

        def logits():
            one = parameters[0] + parameters[1] * x
            return torch.stack([torch.zeros_like(one), one], 1)

        def closure():
            optimiser.zero_grad()
            value = loss(logits(), labels)
            value.backward()
            return value

        optimiser.step(closure)
        return logits().detach()

    plain = fitted(functional.cross_entropy)
    balanced = fitted(weighted_cross_entropy(weights.double()))
    corrected = natural(balanced, weights).softmax(1)
    plain, balanced = plain.softmax(1), balanced.softmax(1)
    assert plain[:, 1].mean() == pytest.approx(0.05, abs=0.005)
    assert (weights[labels] * balanced[:, 1]).mean() == pytest.approx(0.5, abs=0.01)
    good, bad, mended = (score(probs, labels) for probs in (plain, balanced, corrected))
    assert bad["nll"] > 2 * good["nll"] and bad["brier"] > 2 * good["brier"]
    assert mended["nll"] == pytest.approx(good["nll"], rel=0.01)
    assert mended["brier"] == pytest.approx(good["brier"], rel=0.01)
    for name in ("auroc", "sensitivity"):
        assert mended[name] == pytest.approx(bad[name], abs=1e-6)
    assert bad["sensitivity"] == pytest.approx(good["sensitivity"], abs=0.01)


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_natural_of_weights_of_one_is_the_same_and_stays_probabilities(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(20, classes, generator=generator).softmax(1)
    torch.testing.assert_close(natural(probs.log(), torch.ones(classes)).softmax(1), probs)
    weights = 0.01 + 10 * torch.rand(classes, generator=generator)
    found = natural(probs.log(), weights)
    evaluate(found.softmax(1), torch.zeros(20, dtype=torch.int64))
    torch.testing.assert_close(found.softmax(1), (p := probs / weights) / p.sum(1, keepdim=True))
    torch.testing.assert_close(natural(found, 1 / weights).softmax(1), probs)


def test_the_loss_takes_logits_of_float64_as_laplace_sites_have_them():
    logits, labels = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.5, 3.0]]), torch.tensor([0, 2])
    loss = weighted_cross_entropy(torch.tensor([1.0, 2.0, 0.5]))
    assert float(loss(logits.double(), labels)) == pytest.approx(float(loss(logits, labels)))
