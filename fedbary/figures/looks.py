"""Colours and markers of methods: one look each, the same in every picture."""

from __future__ import annotations

from collections.abc import Iterable

from fedbary.aggregation import RULES
from fedbary.figures.sheet import BLUE, GREEN, ORANGE, RED, SKY

REFERENCE = "FedAvg"
"""The deterministic method that the others are measured against."""

COLORS = (
    "#000000",
    BLUE,
    RED,
    GREEN,
    ORANGE,
    "#CC79A7",
    SKY,
    "#882255",
    "#332288",
    "#7A4B22",
    "#999933",
    "#A6D854",
)
MARKERS = ("s", "o", "^", "P", "v", "D", "X", "<", ">", "p", "h", "*", "d")


def styles(methods: Iterable[str] = ()) -> dict[str, dict[str, str]]:
    """Return ``color`` and ``marker`` per method: FedAvg, the other rules, then further names.

    Rules come in the order of the registry, further names in the order given. Colours return
    after 12 names, with other markers.
    """
    names = dict.fromkeys([REFERENCE, *RULES, *methods])
    return {
        name: {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)]}
        for i, name in enumerate(names)
    }
