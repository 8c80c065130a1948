"""What tasks own, by what their data are; a task's file in `limits` says which of these it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedbary.data.image_layout import parse_classes, parse_shape
from fedbary.parts.parameters import (
    Checked,
    Count,
    InsideUnit,
    NameList,
    Number,
    Positive,
    ShareOrZero,
)

Idle = Mapping[str, tuple[str, object, str]]
"""Words without use where another word has a value, each with both, and what does use it."""


@dataclass(frozen=True)
class OfClasses(Checked):
    """What tasks with classes own.

    Parameters
    ----------
    classes
        auto: the data set's; their number, or their names with commas.
    calibrate
        none; temperature: predictions are p^(1/T), normalised, at the one T that suits what clients
        hold out (holdout, evaluate_clients above 0), who send 21 numbers.
    ece_bins
        Bins of the expected calibration error.
    """

    classes: NameList = "auto"
    calibrate: Literal["none", "temperature"] = "none"
    ece_bins: Annotated[int, Field(ge=1, le=10**5)] = 15

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        if self.classes != "auto":
            parse_classes(self.classes)


@dataclass(frozen=True)
class OfSets(OfClasses):
    """What tasks with one class an example own.

    Parameters
    ----------
    conformal
        none; 0.9: after the last round clients send a histogram of what they hold out (holdout
        above 0), and predictions have sets that hold the true class at that rate.
    conformal_score
        How badly a class fits: lac: 1 − p, the smallest sets; aps: the probability of the classes
        above it, no set is empty; raps: and 0.1 for each rank after the first.
    conformal_by
        all: one threshold; class: one for each class, whose rates then hold class by class.
    """

    conformal: InsideUnit | None = None
    conformal_score: Literal["lac", "aps", "raps"] = "lac"
    conformal_by: Literal["all", "class"] = "all"

    IDLE: ClassVar[Idle] = {
        name: ("conformal", None, "a level such as conformal=0.9 does")
        for name in ("conformal_score", "conformal_by")
    }


@dataclass(frozen=True)
class OfAdapters(Checked):
    """What tasks with a backbone own.

    Parameters
    ----------
    adapters
        none: the backbone makes features once, on which the model trains; lora: low-rank adapters
        of it train with the model, W + lora_alpha/rank B A, and messages hold both (peft).
    rank
        Columns of each adapter's B.
    lora_alpha
        Scale of the adapters, divided by their rank.
    targets
        all: every layer that takes an adapter; or names of layers, or of blocks of them, with
        commas between.
    factor
        What of the adapters trains: B; A is frozen at a shared draw, so the mean of B A is that of
        B times A; or both, whose mean is not the mean of the product.
    """

    adapters: Literal["none", "lora"] = "none"
    rank: Count = 8
    lora_alpha: Positive = 8.0
    targets: NameList = "all"
    factor: Literal["B", "both"] = "B"

    IDLE: ClassVar[Idle] = {
        "adapters": ("backbone", "none", "a pretrained network does"),
        **{
            name: ("adapters", "none", "adapters=lora does")
            for name in ("rank", "lora_alpha", "targets", "factor")
        },
    }


@dataclass(frozen=True)
class OfImages(OfAdapters, OfClasses):
    """What tasks on images own.

    Parameters
    ----------
    input_shape
        auto: the data set's; or CHANNELSxHEIGHTxWIDTH, such as 1x28x28.
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

    input_shape: str = "auto"
    backbone_weights: str = "auto"
    backbone_size: Literal["auto"] | Count = "auto"
    features: Literal["all"] | Count = "all"
    whiten: bool = False
    resize: Literal["none", "crop", "pad", "stretch"] = "none"
    normalise: Literal["none", "channels"] = "channels"
    augment: Literal["auto", "crop", "flip"] | bool = "auto"
    corruptions: bool = False

    IDLE: ClassVar[Idle] = {
        **OfAdapters.IDLE,
        "backbone_weights": ("backbone", "none", "a pretrained network does"),
        "backbone_size": ("backbone", "none", "a pretrained network does"),
        "whiten": ("features", "all", "a number of components does"),
    }

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        if self.input_shape != "auto":
            parse_shape(self.input_shape)


@dataclass(frozen=True)
class OfLabelledImages(OfImages, OfSets):
    """What the classification of images owns.

    Parameters
    ----------
    target
        The column of the labels in a Hugging Face data set or a Parquet file (y, where there is
        none: their only ClassLabel, or label).
    """

    target: str = "y"

    IDLE: ClassVar[Idle] = {**OfImages.IDLE, **OfSets.IDLE}


@dataclass(frozen=True)
class OfRows(Checked):
    """What tasks on tables own.

    Parameters
    ----------
    target
        The column that is predicted.
    columns
        The columns that are known of a row, names with commas between.
    leave_out
        Columns that are not used, names with commas between.
    id
        The column that names a row; it is not used, and comes back in predictions.csv.
    missing
        Cells without a value: refuse; mean, median: filled in from all sites' sums or counts (a
        missing text by each level's share); indicator: by the mean, and a feature beside says
        where, for each column that misses some in the server's table.
    split
        Which split into training and test, prescribed or drawn.
    """

    target: str = "y"
    columns: NameList = "all"
    leave_out: NameList = "none"
    id: str = "none"
    missing: Literal["refuse", "mean", "median", "indicator"] = "refuse"
    split: Number = 0


@dataclass(frozen=True)
class OfLabelledRows(OfRows, OfSets):
    """What the classification of tables owns.

    Parameters
    ----------
    class_weights
        none; balanced: rare classes weigh more in the loss, counted over all clients; the predicted
        probabilities are those of the data's own frequencies.
    specificity
        The specificity at which the sensitivity is told.
    """

    class_weights: Literal["none", "balanced"] = "none"
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
