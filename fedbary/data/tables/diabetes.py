"""The diabetes set that scikit-learn carries: real data, no download.

442 patients, ten measurements (age, sex, body mass index, blood pressure, six blood serum values)
in their own units, and how far the disease had advanced a year later. No splits are prescribed.

Source: B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, Least Angle Regression, 2004.
"""

from pathlib import Path

from fedbary.data.frame import Frame, frame


def read(data_dir: Path) -> Frame:
    """Return the set; it comes with scikit-learn, so ``data_dir`` does not matter."""
    from sklearn.datasets import load_diabetes

    held = load_diabetes(scaled=False)
    columns = dict(zip(map(str, held.feature_names), held.data.T, strict=True))
    return frame("diabetes", columns, held.target)
