"""Pictures of several methods show the numbers they were given, each method in its own look."""

import io
import itertools
import math
import sys
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color
from PIL import Image

from fedbary import aggregation
from fedbary.aggregation import RULES
from fedbary.figures import looks, toy
from fedbary.figures.comparison import lines_by_group, rejection_curves
from fedbary.figures.looks import styles
from fedbary.figures.toy import toy_barycentres
from fedbary.figures.triangles import triangle, triangles
from fedbary.scores.stats import SignedRank

METRICS = [("ece", "ECE (%)", 100), ("nll", "NLL (nats)", 1)]
HEIGHT = math.sqrt(0.75)


def picture(figure) -> np.ndarray:
    """The pixels that the figure is written as; nothing of it is cut off at the border."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    with Image.open(file) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[:2] == tuple((figure.get_size_inches() * 160).round()[::-1])
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (border == 255).all()
    return pixels


def legend(figure) -> list[str]:
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def assert_no_text_overlaps(figure):
    figure.draw_without_rendering()
    boxes = []
    for axes in figure.axes:
        texts = [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        boxes += [text.get_window_extent() for text in texts if text.get_text()]
    boxes += [found.get_window_extent() for found in figure.legends]
    assert boxes
    for one, two in itertools.combinations(boxes, 2):
        assert not one.overlaps(two)


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


def outcome(first, equal, second, draws=500) -> SignedRank:
    sample = np.random.default_rng(0).dirichlet(
        [1 + 9 * first, 1 + 9 * equal, 1 + 9 * second], draws
    )
    return SignedRank(first, equal, second, 0.1, 27, sample)


def errorbars(axes) -> dict[str, tuple]:
    """Of each rule: n, means, and the ends of the bars."""
    found = {}
    for container in axes.containers:
        line, _, (bars,) = container.lines
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        found[container.get_label()] = (*line.get_data(), ends, line)
    return found


def test_a_method_has_one_look_and_no_other_has_it():
    look = styles([f"method {i}" for i in range(12)])
    assert list(look)[: len(RULES)] == ["FedAvg", *(name for name in RULES if name != "FedAvg")]
    first = list(look.values())[:12]
    assert len({s["color"] for s in first}) == len({s["marker"] for s in first}) == 12
    assert styles(["other", "WB", "RKLB"]).items() >= styles().items()
    many = styles(map(str, range(60)))
    assert len({(s["color"], s["marker"]) for s in many.values()}) == len(many)


@pytest.mark.parametrize("vision", ["normal", "protan", "deutan"])
def test_colours_differ_for_everyone(vision):
    """In CIELAB, after the dichromat's view by Machado et al. (2009); 10 is plain to see."""
    see = {
        "normal": np.eye(3),
        "protan": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "deutan": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    }[vision]
    codes = [[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in looks.COLORS]
    srgb = np.array(codes)
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.clip(linear @ np.transpose(see), 0, 1) @ np.transpose(to_xyz) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)
    pairs = itertools.combinations(lab, 2)
    assert min(np.linalg.norm(one - two) for one, two in pairs) > 10


def test_toy_draws_what_every_rule_makes_of_it():
    figure = toy_barycentres()
    picture(figure)
    assert_no_text_overlaps(figure)
    panels = {axes.get_title().split(":")[0]: axes for axes in figure.axes[:-2]}
    assert list(panels) == list(styles())
    moments = {
        "AALV": (1, 0.5),
        "EAA": (1, 0.625),
        "GAA": (1, 0.3125),
        "WB": (1, 0.5625),
        "RKLB": (1.6, 0.4),
        "FKLB": (1, 1.625),
    }
    for rule, (mean, var) in moments.items():
        assert panels[rule].get_title() == f"{rule}: N({mean:g}, {var:g})"
        (line,) = panels[rule].lines
        x, y = map(np.asarray, line.get_data())
        expected = np.exp(-((x - mean) ** 2) / (2 * var)) / math.sqrt(2 * math.pi * var)
        np.testing.assert_allclose(y, expected, atol=1e-12)
        assert line.get_color() == styles()[rule]["color"]
    assert panels["FedAvg"].get_title() == "FedAvg: point mass at 1"
    assert panels["FedAvg"].lines[0].get_xdata() == [1, 1]
    assert all(len(axes.collections) == 2 for axes in figure.axes)


def test_toy_draws_the_alpha_barycentres():
    figure = toy_barycentres()
    densities, gaussians = figure.axes[-2:]
    assert "densities" in densities.get_title() and "Gaussians" in gaussians.get_title()
    labels = ["α → 0 (RKLB)", "α = 0.25", "α = 0.5", "α = 1 (FKLB)", "α = 2"]
    assert legend(figure) == ["client N(0, 1)", "client N(2, 0.25)", *labels]
    known = [(1.6, 0.4), (1.441, 0.818), (1.172, 1.347), (1, 1.625), (0.962, 1.708)]
    for panel in (densities, gaussians):
        for line, (mean, var) in zip(panel.lines, known, strict=True):
            x, y = map(np.asarray, line.get_data())
            y = y * (x[1] - x[0])
            assert y.sum() == pytest.approx(1, abs=0.005)
            assert (y @ x) == pytest.approx(mean, abs=0.02)
            assert y @ (x - y @ x) ** 2 == pytest.approx(var, abs=0.06)
    x, mixture = map(np.asarray, densities.lines[3].get_data())
    parts = np.exp(-(x**2) / 2) + 2 * np.exp(-2 * (x - 2) ** 2)
    np.testing.assert_allclose(mixture, parts / 2 / math.sqrt(2 * math.pi), atol=1e-9)


def test_a_new_rule_gets_its_panel_and_its_look_from_the_registry(monkeypatch):
    names = [f"New{i}" for i in range(5)]
    more = dict(RULES) | {name: replace(RULES["WB"], name=name) for name in names}
    for module in (aggregation, looks, toy):
        monkeypatch.setattr(module, "RULES", MappingProxyType(more))
    figure = toy_barycentres()
    picture(figure)
    titles = [axes.get_title() for axes in figure.axes[:-2]]
    assert titles[len(RULES) :] == [f"{name}: N(1, 0.5625)" for name in names]
    assert list(styles())[-5:] == names


def test_triangle_places_the_sample_between_its_corners():
    corners = np.repeat(np.eye(3), [70, 20, 10], axis=0)
    figure = triangle(SignedRank(0.7, 0.2, 0.1, 0.1, 27, corners), "RKLB", "WB")
    pixels = picture(figure)
    assert_no_text_overlaps(figure)
    (axes,) = figure.axes
    hexagons = axes.collections[0]
    cells = dict(
        zip(map(tuple, hexagons.get_offsets().round(1)), hexagons.get_array(), strict=True)
    )
    assert cells == {(0.0, 0.0): 70, (0.5, 0.9): 20, (1.0, 0.0): 10}
    places = [(*text.get_position(), text.get_text()) for text in axes.texts]
    assert [text for _, _, text in places] == [
        "RKLB\nbetter: 0.700",
        "equal: 0.200",
        "WB\nbetter: 0.100",
    ]
    assert [x for x, _, _ in places] == [0, 0.5, 1]
    assert places[0][1] < 0 and places[1][1] > HEIGHT and places[2][1] < 0
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_triangle_parts_the_regions_where_each_outcome_is_largest():
    (axes,) = triangle(outcome(0.4, 0.3, 0.3), "A", "B").axes
    ends = [tuple(np.round(line.get_xydata(), 9).ravel()) for line in axes.lines]
    centre, rounded = (0.5, HEIGHT / 3), lambda *xy: tuple(np.round(xy, 9))
    assert set(ends) == {
        rounded(*centre, 0.75, HEIGHT / 2),
        rounded(*centre, 0.25, HEIGHT / 2),
        rounded(*centre, 0.5, 0),
    }


def test_triangle_keeps_every_draw():
    result = outcome(0.2, 0.7, 0.1)
    (axes,) = triangle(result, "A", "B").axes
    assert axes.collections[0].get_array().sum() == len(result.sample)
    certain = SignedRank(0, 1, 0, 0.1, 27, np.tile([0.0, 1.0, 0.0], (400, 1)))
    (axes,) = triangle(certain, "A", "B").axes
    assert axes.collections[0].get_array().tolist() == [400]


@pytest.mark.parametrize(("pairs", "grid"), [(1, (1, 1)), (3, (1, 3)), (10, (2, 5)), (11, (3, 5))])
def test_triangles_of_many_pairs(pairs, grid):
    names = list(itertools.combinations(["pFedBayes", "RKLB", "WB", "AALV", "GAA", "EAA"], 2))
    results = {name: outcome(i / 20, 0.4, 0.6 - i / 20) for i, name in enumerate(names[:pairs])}
    figure = triangles(results)
    picture(figure)
    assert_no_text_overlaps(figure)
    assert len(figure.axes) == pairs
    assert figure.axes[0].get_gridspec().get_geometry() == grid
    for axes, ((first, second), result) in zip(figure.axes, results.items(), strict=True):
        assert [text.get_text() for text in axes.texts] == [
            f"{first}\nbetter: {result.first:.3f}",
            "equal: 0.400",
            f"{second}\nbetter: {result.second:.3f}",
        ]


def test_no_pair_is_no_picture():
    with pytest.raises(ValueError, match="no pair"):
        triangles({})


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
    picture(triangle(outcome(0.3, 0.3, 0.4), "A", "B"))
