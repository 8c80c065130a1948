"""Names of classes, groups and runs stand in pictures as they are, dollar signs too."""

import io

import numpy as np
import pytest

from fedbary.figures.courses import courses
from fedbary.figures.judged import confusion, precision_recall
from fedbary.figures.roc_curves import roc_curves
from fedbary.figures.run_pictures import reliability_diagram
from fedbary.figures.sheet import contact_sheet
from fedbary.figures.spared import spared
from fedbary.scores.metrics import Reliability, Roc

NAMES = ["b$1_$2", "$1_$5", "$10", r"$\frac$", r"a\$b$", "$$", "a$"]


def pictures():
    curve = Roc(np.array([0, 1, 2]), np.array([0, 1, 2]))
    arms = {name: [[{"round": 1, "nll": 0.5}]] for name in NAMES}
    three = np.array([0.1, 0.5, 1.0])
    diagram = Reliability(three, three, np.array([1, 1, 0]))
    yield roc_curves(dict.fromkeys(NAMES, curve), 0.95, NAMES[0])
    yield contact_sheet(np.zeros((len(NAMES), 1, 5, 5)), NAMES, np.arange(len(NAMES)))
    yield courses(arms, [("nll", 1, "NLL", "black")])
    yield confusion(np.eye(len(NAMES), dtype=int), NAMES)
    yield precision_recall(curve, NAMES[0])
    yield reliability_diagram(diagram, NAMES[0])


def test_a_dollar_sign_begins_no_formula():
    for figure in pictures():
        figure.savefig(io.BytesIO(), format="png", dpi=30)


def test_a_failure_is_one_line():
    said = []
    with spared("roc.png", said.append):
        raise ValueError("a formula\nthat ends nowhere")
    assert said == ["roc.png: not drawn, ValueError: a formula that ends nowhere"]
    with pytest.raises(KeyboardInterrupt), spared("roc.png", said.append):
        raise KeyboardInterrupt
