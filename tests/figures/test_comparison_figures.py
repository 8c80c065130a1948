"""Curves of several methods show the numbers they were given."""

import itertools
import sys

import numpy as np
import pandas as pd
import pytest
from every_method import night
from matplotlib.colors import same_color
from pictures import assert_no_text_overlaps, legend, outcome, picture

from fedbary.figures.comparison import lines_by_group, rejection_curves
from fedbary.figures.looks import styles
from fedbary.figures.triangles import triangles
from findings.protocol.toy import toy_barycentres

METRICS = [("ece", "ECE (%)", 100), ("nll", "NLL (nats)", 1)]


def runs() -> pd.DataFrame:
    """Three seeds on two data sets: the values tell data set, rule, n and seed apart."""
    rows = []
    for data, (dataset, base) in enumerate([("SVHN", 0.1), ("CIFAR-10", 0.4)]):
        for rule, layers in (("FedAvg", [0]), ("RKLB", [3, 1, 2]), ("AALV", [1, 2, 3])):
            for n, seed in itertools.product(layers, range(3)):
                ece = base + 0.01 * n + 0.001 * seed * (1 + n) + 0.05 * (rule == "AALV")
                row = {"dataset": dataset, "rule": rule, "n": n, "seed": seed}
                rows.append(row | {"ece": ece, "nll": 10 * ece + data})
    return pd.DataFrame(rows)


def rejections() -> pd.DataFrame:
    gain = {"FedAvg": 0.0, "WB": 0.02, "GAA": -0.01}
    return pd.DataFrame(
        [
            {
                "dataset": dataset,
                "rule": rule,
                "seed": seed,
                "rejected": share,
                "accuracy": 0.6 + 0.3 * share + 0.05 * seed + gain[rule] * (1 + seed),
            }
            for dataset in ("A", "B")
            for rule, seed in itertools.product(gain, range(3))
            for share in (0.5, 0.0, 0.25)
        ]
    )


def errorbars(axes) -> dict[str, tuple]:
    """Of each rule: n, means, and the ends of the bars."""
    found = {}
    for container in axes.containers:
        line, _, (bars,) = container.lines
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        found[container.get_label()] = (*line.get_data(), ends, line)
    return found


def test_lines_show_mean_and_spread_over_the_seeds():
    frame = runs()
    figure = lines_by_group(frame, METRICS)
    picture(figure)
    assert_no_text_overlaps(figure)
    panels = np.reshape(figure.axes, (2, 2))
    assert [axes.get_title() for axes in panels[0]] == ["SVHN", "CIFAR-10"]
    assert [axes.get_ylabel() for axes in panels[:, 0]] == ["ECE (%)", "NLL (nats)"]
    assert all(axes.get_xlabel() == "Bayesian layers n" for axes in panels[1])
    assert legend(figure) == ["FedAvg", "AALV", "RKLB"]
    values = dict(list(frame.groupby(["dataset", "rule", "n"])))
    for (row, (column, _, scale)), (at, dataset) in itertools.product(
        zip(panels, METRICS, strict=True), enumerate(["SVHN", "CIFAR-10"])
    ):
        axes, drawn = row[at], errorbars(row[at])
        assert axes.get_xticks().tolist() == [0, 1, 2, 3]
        for rule in ("AALV", "RKLB"):
            n, mean, ends, line = drawn[rule]
            expected = np.array([scale * values[dataset, rule, n][column] for n in (1, 2, 3)])
            np.testing.assert_allclose(mean, expected.mean(1))
            std = expected.std(1, ddof=1)
            np.testing.assert_allclose(ends, np.stack([mean - std, mean + std], 1))
            np.testing.assert_array_equal(n.round(), [1, 2, 3])
            assert line.get_color() == styles()[rule]["color"]
            assert line.get_marker() == styles()[rule]["marker"]
        assert (drawn["RKLB"][0] - drawn["AALV"][0] > 0.06).all()


def test_fedavg_is_the_horizontal_reference():
    figure = lines_by_group(runs(), METRICS[:1])
    for axes, mean in zip(figure.axes, (10.1, 40.1), strict=True):
        n, means, ends, _ = errorbars(axes)["FedAvg"]
        assert n.tolist() == [0] and means == pytest.approx([mean])
        assert ends == pytest.approx(np.array([[mean - 0.1, mean + 0.1]]))
        (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert dashed.get_ydata() == pytest.approx([mean, mean])
        assert dashed.get_xdata() == [0, 1]
        (band,) = axes.patches
        assert (band.get_y(), band.get_height()) == pytest.approx((mean - 0.1, 0.2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_lines_leave_out_what_is_not_finite(bad):
    frame = runs()
    frame["ece"] = frame["ece"].astype(object)
    frame.loc[(frame["rule"] == "AALV") & (frame["n"] == 2), "ece"] = bad
    frame.loc[(frame["rule"] == "RKLB") & (frame["n"] == 1) & (frame["seed"] > 0), "ece"] = bad
    axes = lines_by_group(frame, METRICS[:1]).axes[0]
    n, *_ = errorbars(axes)["AALV"]
    assert n.round().tolist() == [1, 3]
    _, mean, ends, _ = errorbars(axes)["RKLB"]
    assert mean[0] == pytest.approx(11) and ends[0] == pytest.approx([11, 11])


def test_lines_of_one_rule_and_one_data_set():
    frame = runs().query("dataset == 'SVHN' and rule == 'RKLB'")
    figure = lines_by_group(frame, METRICS[:1])
    picture(figure)
    assert errorbars(figure.axes[0])["RKLB"][0].tolist() == [1, 2, 3]
    assert legend(figure) == ["RKLB"]


def test_legend_of_twelve_methods_fits_one_narrow_panel():
    frame = runs().query("dataset == 'SVHN'")
    names = ["FedAvg", *(f"method {i}" for i in range(11))]
    many = pd.concat([frame[frame["rule"] == "RKLB"].assign(rule=name) for name in names])
    figure = lines_by_group(many, METRICS[:1])
    picture(figure)
    assert_no_text_overlaps(figure)
    assert set(legend(figure)) == set(names)
    n = np.sort([errorbars(figure.axes[0])[name][0][0] for name in names if name != "FedAvg"])
    assert np.diff(n).min() > 0.06 and n[-1] - n[0] < 0.75


def test_rejection_curves_show_accuracy_and_the_gain_on_fedavg():
    figure = rejection_curves(rejections())
    picture(figure)
    assert_no_text_overlaps(figure)
    upper, lower = np.reshape(figure.axes, (2, 2))
    assert [axes.get_title() for axes in upper] == ["A", "B"]
    assert upper[0].get_ylabel() == "Accuracy on the rest (%)"
    assert lower[0].get_ylabel() == "Difference from FedAvg (points)"
    assert lower[1].get_xlabel() == "Rejected, most uncertain first (%)"
    assert legend(figure) == ["FedAvg", "GAA", "WB"]
    for axes in upper:
        lines = {line.get_label(): line for line in axes.lines}
        np.testing.assert_allclose(lines["FedAvg"].get_xydata(), [[0, 65], [25, 72.5], [50, 80]])
        np.testing.assert_allclose(lines["WB"].get_ydata(), [69, 76.5, 84])
        assert same_color(lines["WB"].get_color(), styles()["WB"]["color"])
        assert lines["WB"].get_marker() == styles()["WB"]["marker"]
        sizes = [line.get_markersize() for line in axes.lines]
        assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
    for axes in lower:
        lines = {line.get_label(): line.get_ydata() for line in axes.lines}
        np.testing.assert_allclose(lines["FedAvg"], 0, atol=1e-9)
        np.testing.assert_allclose(lines["WB"], 4)
        np.testing.assert_allclose(lines["GAA"], -2)
        bands = [band.get_datalim(axes.transData) for band in axes.collections]
        assert [(b.y0, b.y1) for b in bands] == [
            pytest.approx(ends, abs=1e-9) for ends in [(0, 0), (-3, -1), (2, 6)]
        ]


def test_rejection_curves_without_fedavg_have_one_row():
    figure = rejection_curves(rejections().query("rule != 'FedAvg'"))
    picture(figure)
    assert len(figure.axes) == 2 and legend(figure) == ["GAA", "WB"]


def test_a_run_without_its_fedavg_has_no_gain():
    frame = rejections()
    frame = frame[(frame["rule"] != "FedAvg") | (frame["seed"] != 2)]
    lower = rejection_curves(frame).axes[2]
    gains = {line.get_label(): line.get_ydata() for line in lower.lines}
    np.testing.assert_allclose(gains["WB"], 3)


@pytest.mark.parametrize("draw", [lambda f: lines_by_group(f, METRICS), rejection_curves])
def test_no_run_is_no_picture(draw):
    frame = pd.concat([runs(), rejections()])[:0]
    with pytest.raises(ValueError, match="no run"):
        draw(frame)


@night  # by day the other tests here draw from one frame
def test_frames_are_not_changed_and_pyplot_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for frame, draw in (
        (runs(), lambda f: lines_by_group(f, METRICS)),
        (rejections(), rejection_curves),
    ):
        before = frame.copy()
        picture(draw(frame))
        pd.testing.assert_frame_equal(frame, before)
    picture(toy_barycentres())
    picture(triangles({("A", "B"): outcome(0.3, 0.3, 0.4)}))
