"""The Wisconsin diagnostic breast cancer set that scikit-learn carries: real data, no download.

569 tumours, thirty measurements of cell nuclei in an image of a fine needle aspirate, 357 benign
and 212 malignant. The malignant are the positive class. No splits are prescribed.

Source: W. Street, W. Wolberg and O. Mangasarian, Nuclear Feature Extraction for Breast Tumor
Diagnosis, 1993.
"""

from pathlib import Path

from fedbary.data.frame import Frame, frame


def read_labelled(data_dir: Path) -> Frame:
    """Return the set; it comes with scikit-learn, so ``data_dir`` does not matter."""
    from sklearn.datasets import load_breast_cancer

    held = load_breast_cancer()
    columns = dict(zip(map(str, held.feature_names), held.data.T, strict=True))
    return frame("breast_cancer", columns, held.target_names[held.target])
