"""Pictures are drawn for every shape of input, and show what they were given."""

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fedbary.figures.courses import courses
from fedbary.figures.run_pictures import partition_heatmap, reliability_diagram
from fedbary.figures.sheet import DPI
from fedbary.scores.metrics import Reliability, reliability
from fedbary.tasks.classification import Classification

RNG = np.random.default_rng(0)


def colours(figure) -> int:
    file = io.BytesIO()
    figure.savefig(file, dpi=DPI)
    with Image.open(file) as picture:
        assert min(picture.size) > 300
        return len(picture.convert("RGB").getcolors(1 << 24))


def test_learning_curves_skip_what_is_missing():
    rounds = [
        {"round": 1, "accuracy": 0.5, "nll": 2.0, "ece": 0.1},
        {"round": 2, "accuracy": None, "nll": float("nan"), "ece": 0.2},
        {"round": 5, "accuracy": 0.75, "nll": 1.0},
    ]
    figure = courses({"": [rounds]}, Classification.curves)
    assert colours(figure) > 10
    lines = [axes.lines[0].get_xydata().tolist() for axes in figure.axes]
    assert lines == [[[1, 50], [5, 75]], [[1, 2], [5, 1]], [[1, 10], [2, 20]]]
    assert all(axes.get_xlabel() == "Round" and axes.get_ylabel() for axes in figure.axes)


@pytest.mark.parametrize("count", [0, 1, 60])
def test_learning_curves_of_any_length(count):
    rounds = [{"round": r, "accuracy": r / 100} for r in range(1, count + 1)]
    figure = courses({"": [rounds]}, Classification.curves)
    assert colours(figure) > 1
    assert [len(axes.lines[0].get_xdata()) for axes in figure.axes] == [count, 0, 0]
    assert [text.get_text() for text in figure.axes[2].texts] == ["no values"]


def test_ticks_of_one_round_are_whole():
    figure = courses({"": [[{"round": 3, "accuracy": 0.5}]]}, Classification.curves)
    ticks = figure.axes[0].get_xticks()
    assert 3 in ticks and (ticks % 1 == 0).all()


@pytest.mark.parametrize(
    ("clients", "numbered"), [(1, True), (10, True), (30, False), (100, False)]
)
def test_partition_heatmap(clients, numbered):
    counts = RNG.integers(0, 500, (clients, 10))
    figure = partition_heatmap(counts)
    assert colours(figure) > 20
    axes = figure.axes[0]
    shown = [text.get_text() for text in axes.texts]
    assert shown == ([str(count) for count in counts.ravel()] if numbered else [])
    assert np.array_equal(axes.images[0].get_array().filled(0), counts)
    assert axes.get_xlabel() == "Class" and axes.get_ylabel().startswith("Client")


def test_a_heatmap_names_classes_that_have_names_and_counts_all_examples():
    figure = partition_heatmap(np.ones((2, 2), int), ["north", "south"], ["no", "a long name"])
    axes, bar = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["no", "a long name"]
    assert bar.get_ylabel().startswith("Examples")
    figure.canvas.draw()  # no warning: everything has room


def test_many_clients_share_the_rows_of_a_heatmap():
    counts = RNG.integers(0, 5, (1234, 3))
    figure = partition_heatmap(counts)
    axes, bar = figure.axes
    rows = axes.images[0].get_array().filled(0)
    assert len(rows) == 412 and np.allclose(rows[0], counts[:3].mean(0))
    assert np.allclose(rows[-1], counts[1233])
    assert axes.images[0].get_extent()[2:] == [1235.5, -0.5]
    assert "3 clients" in bar.get_ylabel() and figure.get_size_inches()[1] < 40


def test_reliability_diagram_shows_the_gaps():
    confidence = np.array([0.1, 0, 0.7, 0.95])
    accuracy = np.array([0.2, 0, 0.5, 0.9])
    count = np.array([10, 0, 30, 60])
    diagram = Reliability(confidence, accuracy, count)
    figure = reliability_diagram(diagram, "Digits")
    assert colours(figure) > 10
    upper, lower = figure.axes
    assert upper.get_title() == f"Digits\nECE {100 * diagram.ece:.2f} %"
    common, over, under = (
        [bar.get_height() for bar in container] for container in upper.containers
    )
    assert common == pytest.approx([0.1, 0, 0.5, 0.9])
    assert over == pytest.approx([0, 0, 0.2, 0.05])
    assert under == pytest.approx([0.1, 0, 0, 0])
    assert [bar.get_height() for bar in lower.containers[0]] == pytest.approx([10, 0, 30, 60])
    (by_chance,) = upper.collections
    spans = {round(line[0, 0], 3): line[:, 1] for line in by_chance.get_segments()}
    assert list(spans) == [0.125, 0.625, 0.875]  # the empty bin has none
    assert spans[0.625] == pytest.approx(
        [0.7 - 1.96 * (0.21 / 30) ** 0.5, 0.7 + 1.96 * (0.21 / 30) ** 0.5]
    )
    assert spans[0.125][0] == 0
    assert upper.get_ylabel() and lower.get_xlabel() and lower.get_ylabel()


@pytest.mark.parametrize("bins", [1, 15, 100])
def test_reliability_diagram_of_any_number_of_bins(bins):
    probs = torch.tensor(RNG.dirichlet(np.ones(4), 300))
    diagram = reliability(probs, torch.zeros(300, dtype=torch.long), bins)
    figure = reliability_diagram(diagram, "Any")
    assert colours(figure) > 10


def test_inputs_are_not_changed():
    diagram = reliability(torch.eye(3), torch.arange(3))
    count = diagram.count.copy()
    reliability_diagram(diagram, "Certain")
    assert np.array_equal(diagram.count, count)


def test_pyplot_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    figure = partition_heatmap(np.ones((2, 2), int))
    assert colours(figure) > 10
