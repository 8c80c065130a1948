"""Three tables under the default prior, N(0, 10²): python -m findings.statistics.prior.

The distance of statsmodels' fit from a run of six sites by a skewed column, from the mode of all
rows under the same prior, and of these two from each other; in standard errors of statsmodels.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from findings.statistics.measure import measure, pooled, splits, tables

FILE, PRIOR_STD = Path(__file__).with_name("prior.jsonl"), 10.0


def mode(family, table, flat):
    """Return the mode of all rows under the prior, (outcomes, terms), by Newton's method from flat.

    The prior is of columns of variance 1, each uncorrelated with those before, and the intercept.
    """
    x, y = table.drop(columns="y").to_numpy(float), table.y.to_numpy()
    root, centre, outputs = np.linalg.cholesky(np.cov(x.T, bias=True)), x.mean(0), len(flat)
    z = np.c_[np.linalg.solve(root, (x - centre).T).T, np.ones(len(x))]
    one = (y[:, None] == np.arange(1, outputs + 1)) if family == "multinomial" else y[:, None]
    at = np.c_[flat[:, :-1] @ root, flat[:, -1] + flat[:, :-1] @ centre]
    for _ in range(8):
        rate = np.exp(z @ at.T)
        mean = rate if family == "poisson" else rate / (1 + rate.sum(1, keepdims=True))
        bent = mean[:, :, None] * np.eye(outputs)
        bent = bent if family == "poisson" else bent - mean[:, :, None] * mean[:, None]
        curved = np.einsum("nkl,ni,nj->kilj", bent, z, z, optimize=True)
        curved = curved.reshape(at.size, at.size) + np.eye(at.size) / PRIOR_STD**2
        slope = (mean - one).T @ z + at / PRIOR_STD**2
        at = at - np.linalg.solve(curved, slope.ravel()).reshape(at.shape)
    slopes = np.linalg.solve(root.T, at[:, :-1].T).T
    return np.c_[slopes, at[:, -1] - slopes @ centre]


def main():
    """Measure the three tables, and write the file anew."""
    lines = []
    for name, family, table, column, sites in tables():
        if family == "cox":
            continue
        estimate, std = pooled(family, table, None)
        alike, (split, site) = mode(family, table, estimate), [*splits(table, column, sites)][1]
        cells = [
            next(measure(name, family, table, split, site, (truth, std), PRIOR_STD, (20,)))
            for truth in (estimate, alike)
        ]
        away = float((np.abs(alike - estimate) / std).max())
        line = {"data": name, "sites": f"{sites} {split}", "rounds": cells[0]["taken"]}
        lines.append({**line, "run": cells[0]["error"], "place": away, "apart": cells[1]["error"]})
    pd.DataFrame(lines).to_json(FILE, orient="records", lines=True, double_precision=15)


if __name__ == "__main__":
    main()
