"""The toy picture shows what every rule makes of two Gaussians."""

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from every_method import night
from pictures import assert_no_text_overlaps, legend, picture

from fedbary import aggregation
from fedbary.aggregation import RULES
from fedbary.figures.sheet import COLORS
from findings.protocol import toy
from findings.protocol.toy import toy_barycentres


def test_toy_draws_what_every_rule_makes_of_it():
    figure = toy_barycentres()
    picture(figure)
    assert_no_text_overlaps(figure)
    panels = {axes.get_title().split(":")[0]: axes for axes in figure.axes[:-2]}
    assert [*panels] == ["FedAvg", *(name for name in RULES if name != "FedAvg")]
    colors = dict(zip(panels, COLORS, strict=False))
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
        assert line.get_color() == colors[rule]
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


@night  # by day tests/house/test_adding adds rules
def test_a_new_rule_gets_its_panel_from_the_registry(monkeypatch):
    names = [f"New{i}" for i in range(5)]
    more = dict(RULES) | {name: replace(RULES["WB"], name=name) for name in names}
    for module in (aggregation, toy):
        monkeypatch.setattr(module, "RULES", MappingProxyType(more))
    figure = toy_barycentres()
    picture(figure)
    titles = [axes.get_title() for axes in figure.axes[:-2]]
    assert titles[len(RULES) :] == [f"{name}: N(1, 0.5625)" for name in names]
