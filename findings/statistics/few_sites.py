"""The mixed model's intercept with three sites: python -m findings.statistics.few_sites.

The federations and the fit are those of mixed.py, with τ = 1.
"""

import json
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from findings.statistics.coverage import COUNT, LEVEL, SEED, drawn
from findings.statistics.mixed import ABOUT, fitted

FILE, SITES = Path(__file__).with_name("few_sites.json"), 3


def main():
    """Write the share of 95 % intervals that hold the intercept, by a normal and by t."""
    torch.set_num_threads(1)
    draw, away = np.random.default_rng(SEED), []
    for _ in range(COUNT):
        factors, _ = fitted(drawn(draw, SITES, ABOUT[1], 1.0, 0, False))
        away.append(abs(float(factors.estimates[-1]) - LEVEL) / float(factors.stds[-1]))
    wide = {"normal": stats.norm.ppf(0.975), "t": stats.t(SITES - 1).ppf(0.975)}
    rates = {name: 100 * float(np.mean(np.array(away) < most)) for name, most in wide.items()}
    FILE.write_text(json.dumps({"sites": SITES, "federations": COUNT, **rates}) + "\n")


if __name__ == "__main__":
    main()
