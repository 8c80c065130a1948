"""What tasks own, by what their data are; a task's file in `limits` says which of these it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fedbary.parts.parameters import Checked, Count, Number, Positive, ShareOrZero


@dataclass(frozen=True)
class OfClasses(Checked):
    """What tasks with classes own.

    Parameters
    ----------
    ece_bins
        Bins of the expected calibration error.
    """

    ece_bins: Annotated[int, Field(ge=1, le=10**5)] = 15


@dataclass(frozen=True)
class OfImages(OfClasses):
    """What tasks on images own.

    Parameters
    ----------
    backbone_weights
        auto: the library's own; the path of a file, or an installed package that holds one.
    backbone_size
        Side in pixels that images are scaled to for a backbone; auto: its own.
    features
        Of a backbone, or of data that are features: all, or how many principal components, from
        sums of second moments that the sites send.
    whiten
        Whether each component then has variance 1.
    resize
        Pictures of another size than input_shape: none: refused; crop: scaled, and what juts out
        cut off; pad: scaled, and black added; stretch: each side by itself.
    normalise
        none; channels: each channel less its mean over its std, of all sites' training pixels, from
        sums that the sites send; none by default with pixels=signed.
    augment
        Change training images at random: crop: shifted by up to 4 pixels; flip: left to right,
        every second one; true: both; false: neither; auto: as the data set says (CIFAR-10: true,
        others: false).
    corruptions
        Whether the final model is scored on blurred, noisy and pale images, too.
    """

    backbone_weights: str = "auto"
    backbone_size: Literal["auto"] | Count = "auto"
    features: Literal["all"] | Count = "all"
    whiten: bool = False
    resize: Literal["none", "crop", "pad", "stretch"] = "none"
    normalise: Literal["none", "channels"] = "channels"
    augment: Literal["auto", "crop", "flip"] | bool = "auto"
    corruptions: bool = False


@dataclass(frozen=True)
class OfRows(Checked):
    """What tasks on tables own.

    Parameters
    ----------
    id
        The column that names a row; it is not used, and comes back in predictions.csv.
    missing
        Cells without a value: refuse; mean, median: filled in from all sites' sums or counts (a
        missing text by each level's share); indicator: by the mean, and a feature beside says
        where, for each column that misses some in the server's table.
    split
        Which split into training and test, prescribed or drawn.
    """

    id: str = "none"
    missing: Literal["refuse", "mean", "median", "indicator"] = "refuse"
    split: Number = 0


@dataclass(frozen=True)
class OfLabelledRows(OfRows, OfClasses):
    """What the classification of tables owns.

    Parameters
    ----------
    specificity
        The specificity at which the sensitivity is told.
    """

    specificity: ShareOrZero = 0.95


@dataclass(frozen=True)
class OfNumbers(OfRows):
    """What regression owns.

    Parameters
    ----------
    noise
        The target's noise. FedAG: none (the paper's), cross (from the other clients' networks'
        errors) or a number; else: learned or a number. A number is the noise's variance, as a part
        of the target's.
    """

    noise: Literal["none", "cross", "learned"] | Positive = "cross"
