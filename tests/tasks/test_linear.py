"""How far a model is behind a linear one that sees all data in one place."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression

from fedbary.data.deal import evaluation_data, training_data
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.tasks._failing import (
    FAR_BEHIND,
    FAR_NLL,
    LEAST,
    Rival,
    _logistic,
    _ridge,
    far_above,
    far_behind,
    rival,
)

FOUND = Rival(torch.zeros(0), 10, 20)


@given(st.integers(2, 400), st.integers(0, 400), st.integers(0, 400))
def test_far_is_four_points_and_the_line_has_their_standard_error(examples, ours, theirs):
    ours, theirs = min(ours, examples), min(theirs, examples)
    right = torch.arange(examples)
    said = far_behind("accuracy", (right < ours).double(), (right < theirs).double(), FOUND)
    gap = (theirs - ours) / examples
    error = np.sqrt(abs(gap) * (1 - abs(gap)) / examples)
    assert bool(said) == (gap >= FAR_BEHIND - 1e-12)
    told = f"{100 * gap:.1f} points (standard error {100 * error:.1f})"
    assert all(told in text for text in said.values())


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5)), min_size=2, max_size=40))
def test_an_nll_a_tenth_above_is_far_and_the_line_has_its_standard_error(pairs):
    ours, theirs = torch.tensor(pairs, dtype=torch.float64).T
    said = far_above(ours, theirs, FOUND)
    gap = (ours - theirs).numpy()
    error = gap.std() / np.sqrt(len(gap))
    assert bool(said) == (gap.mean() >= max(FAR_NLL * float(theirs.mean()), error))
    told = f"{gap.mean():.3f} (standard error {error:.3f}) above"
    assert all(told in text for text in said.values())


def test_the_linear_model_is_that_of_all_rows_in_one_place():
    settings = resolve({"task": "regression", "clients": 3, "device": "cpu"})
    task = task_of(settings)
    x, y = training_data(task.held, task.deal)
    tested, targets = evaluation_data(task.held, task.deal)
    by = LinearRegression().fit(x.numpy(), y.numpy())
    found = rival(task.held, task.deal)
    assert (found.seen, found.examples) == (len(x), len(x))
    differ = found.answers[:, 0].numpy() - by.predict(tested.numpy())
    assert np.abs(differ).max() < 0.1 * targets.std()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 80, 40)])
def test_pictures_of_any_size_have_a_linear_model(shape, dtype, tmp_path):
    draw, y = np.random.default_rng(0), np.arange(200) % 3
    x = draw.integers(0, 100, (200, *shape))
    for part, rows in enumerate(np.array_split(np.arange(shape[1]), 3)):
        x[np.ix_(y == part, [0], rows)] += 50
    x = x.astype(dtype) / (1 if dtype is np.uint8 else 255)
    file = tmp_path / "made.npz"
    parts = {"x_train": x[:150], "y_train": y[:150], "x_test": x[150:], "y_test": y[150:]}
    np.savez(
        file,
        **{name: part.astype(dtype if name[0] == "x" else int) for name, part in parts.items()},
    )
    task = task_of(resolve({"dataset": str(file), "clients": 2, "device": "cpu"}))
    found = rival(task.held, task.deal, classes=3)
    assert (found.answers.argmax(1).numpy() == y[150:]).mean() > 0.9


def test_values_that_are_missing_do_not_hinder_it(tmp_path):
    draw = np.random.default_rng(0)
    rows = ["a,b,out"]
    for number in range(100):
        a, b = draw.normal(size=2)
        rows.append(f"{a if number % 5 else ''},{b},{'yes' if a + b > 0 else 'no'}")
    (tmp_path / "gaps.csv").write_text("\n".join(rows) + "\n")
    given = {"task": "tables", "dataset": str(tmp_path / "gaps.csv"), "target": "out"}
    task = task_of(resolve({**given, "missing": "mean", "clients": 2, "device": "cpu"}))
    assert rival(task.held, task.deal, classes=2).answers.isfinite().all()


def test_a_class_without_examples_has_the_least_probability():
    x, labels = torch.linspace(-3, 3, 90, dtype=torch.float64)[:, None], torch.arange(90) // 45 * 2
    answers = _logistic(x, labels, 4)(x)
    assert (answers.argmax(1) == labels).double().mean() > 0.95
    assert (answers[:, [1, 3]].exp() <= 1.001 * LEAST).all()


def test_numbers_of_columns_that_do_not_vary_are_their_mean():
    x = torch.zeros(5, 3, dtype=torch.float64)
    assert _ridge(x, torch.arange(5.0))(x).numpy() == pytest.approx(2)


@pytest.mark.parametrize("examples", [2, 3])
def test_few_numbers_have_a_finite_model(examples):
    x = torch.randn(examples, 4, dtype=torch.float64)
    x = x - x.mean(0)
    assert _ridge(x, x[:, 0])(x).isfinite().all()
