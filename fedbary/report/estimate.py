"""A mean with its standard error, and its significant digits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

LARGE = 1e6
"""Means from this size are written with an exponent."""


@dataclass(frozen=True)
class Estimate:
    """A mean over splits with its standard error; NaN if there is none."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: pd.Series) -> Estimate:
        """Estimate from a value of each split."""
        count = len(values)
        if not count or not np.isfinite(values).all():
            return cls(math.nan, math.nan)
        return cls(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count))

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        if abs(self.mean) >= LARGE:
            text = f"{self.mean:.1e}"
            return text if math.isnan(self.error) else f"{text} ± {self.error:.1e}"
        places = max(2, 2 - math.floor(math.log10(abs(self.mean) or 1)))
        text = f"{self.mean:.{places}f}"
        return text if math.isnan(self.error) else f"{text} ± {self.error:.{places}f}"
