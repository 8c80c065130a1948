"""What was to be reached on pretrained features, and whether it was: a table of pretrained.md.

The bounds were named before the runs, and so was the NLL as the score that decides. A bar is met
where the first side is not worse by the bound or more: by a one-sided t-test at 5 % after Holm's
correction over all bars in NLL, and by the 95 % interval in accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedbary.report.cells import ACCURACY, NLL
from fedbary.report.differences import p_value
from fedbary.report.markup import markdown_table
from fedbary.scores.stats import corrected
from findings._pairs import equivalence, no_worse, of_pair
from findings.pretrained.page import read


class Bar(NamedTuple):
    """A pair of sides, and how much worse the first may be, if that is said.

    Nats of NLL, points of accuracy; 0: it must be ahead.
    """

    first: str
    second: str
    nll: float | None
    accuracy: float | None = None


BARS = [
    Bar("LDA", "one place", None, 1.5),
    Bar("LDA", "FedAvg 5", 0.0),
    Bar("LDA", "FedAvg 20", 0.01),
    Bar("sites 2", "one place", 0.01, 0.5),
    Bar("sites 2", "FedAvg 20", 0.0),
    Bar("sites 2", "SCAFFOLD 20", 0.01),
]


def tables(results: Path) -> str:
    """Return the bars, what was measured, and which are met."""
    return bars_table(read(results), BARS)


def bars_table(rows: pd.DataFrame, bars: Sequence[Bar]) -> str:
    """Return bars, what was measured in rows with a column `side`, and which are met."""
    found = [of_pair(rows, bar[:2], NLL) for bar in bars]
    tested = [(pair, bar.nll) for pair, bar in zip(found, bars, strict=True) if bar.nll is not None]
    holm = iter(corrected([no_worse(pair, bound) for pair, bound in tested]))
    body = []
    for bar, nll in zip(bars, found, strict=True):
        accuracy = of_pair(rows, bar[:2], ACCURACY)
        p = None if bar.nll is None else next(holm)
        met = (p is None or p < 0.05) and (bar.accuracy is None or accuracy.low > -bar.accuracy)
        same = p_value(equivalence(nll, bar.nll)) if bar.nll else "–"
        body.append(
            [
                f"{bar.first} − {bar.second}",
                *(NLL.difference(nll), _bound(bar.nll), "–" if p is None else p_value(p)),
                *(same, ACCURACY.difference(accuracy), _bound(bar.accuracy)),
                "yes" if met else "**no**",
            ]
        )
    head = ["pair", "NLL [95 %]", "worse by less than", "p, Holm", "p, equivalence"]
    head += ["accuracy, points [95 %]", "worse by less than", "met"]
    return markdown_table(head, body)


def _bound(bound: float | None) -> str:
    """Return a bound in words."""
    return "–" if bound is None else f"{bound:g}" if bound else "0: ahead"
