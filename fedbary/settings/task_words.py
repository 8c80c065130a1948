"""Settings of tasks by their kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedbary.data.forms import require_backbone
from fedbary.data.image_layout import parse_channels, parse_classes, parse_shape
from fedbary.errors import SettingError
from fedbary.parts.parameters import Checked, Count, InsideUnit, NameList, Number, Positive

Idle = Mapping[str, tuple[str, object, str]]
"""Settings that another setting's value makes ineffective, each with both and the value of use."""


LEVEL = ("conformal", None, "a level such as conformal=0.9 does")


@dataclass(frozen=True)
class OfGuarantees(Checked):
    """Settings of tasks with one target an example.

    Parameters
    ----------
    conformal
        none; or a rate such as 0.9: predictions have sets of classes, or intervals, that hold the
        truth at that rate. It needs holdout above 0: after the last round clients send a histogram
        of their held-out examples' scores.
    conformal_by
        all: one threshold. class: a threshold for each class, so that the rate holds for each
        class. A table's column of levels: a threshold for each level.
    group
        What names rows that belong together, such as a patient's: a column of a table, of texts or
        of a Hugging Face data set; an array of an .npz; folder, for the folder below an image's
        class. Whole groups are trained on, tested or held out. none: each row stands alone, or an
        id that repeats is taken. It is no feature.
    """

    conformal: InsideUnit | None = None
    conformal_by: str = "all"
    group: str = "none"

    IDLE: ClassVar[Idle] = {"conformal_by": LEVEL}


@dataclass(frozen=True)
class OfClasses(OfGuarantees):
    """Settings of tasks with one class an example.

    Parameters
    ----------
    classes
        auto: the data set's classes. Otherwise their number, or their names with commas between.
    calibrate
        none; temperature: predictions are p^(1/T), normalised. One T is fitted to the clients'
        held-out examples (holdout and evaluate_clients above 0); each client sends 21 numbers.
    ece_bins
        Bins of the expected calibration error.
    ood_dataset
        none; a data set that the final model is tested on as out-of-distribution.
    conformal_score
        Score of a class; a larger one fits worse. lac: 1 − p, gives the smallest sets. aps: the
        probability of the classes above it, leaves no set empty. raps: aps, plus 0.1 for each rank
        after the first.
    """

    classes: NameList = "auto"
    ood_dataset: str = "none"
    calibrate: Literal["none", "temperature"] = "none"
    ece_bins: Annotated[int, Field(ge=1, le=10**5)] = 15
    conformal_score: Literal["lac", "aps", "raps"] = "lac"

    IDLE: ClassVar[Idle] = {"conformal_score": LEVEL, **OfGuarantees.IDLE}

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        if self.classes != "auto":
            parse_classes(self.classes)


@dataclass(frozen=True)
class OfFeatures(OfClasses):
    """Settings of tasks whose models may train on a backbone's features.

    Parameters
    ----------
    backbone
        none; or a frozen network that turns inputs into features once; the model (by default
        linear) trains on these. For images: timm:NAME, torchvision:NAME, hf:OWNER/NAME (of timm),
        or package.module:factory, your own function that returns an nn.Module. For text: a network
        of transformers, hf:OWNER/NAME or hf:PATH; the default's extra is text.
    backbone_weights
        auto: the library's own weights. Otherwise the path of a file (for text: of a folder), or an
        installed package that holds one.
    features
        all; or the number of principal components of a backbone's features, or of data that are
        features. The sites send sums of second moments for it.
    whiten
        True: each component is scaled to variance 1.
    normalise
        none; channels: subtract the mean of each channel, or feature, and divide by its std. Both
        are taken over all sites' training examples, from sums that the sites send. With
        pixels=signed the default is none.
    """

    backbone: str = "none"
    backbone_weights: str = "auto"
    features: Literal["all"] | Count = "all"
    whiten: bool = False
    normalise: Literal["none", "channels"] = "channels"

    IDLE: ClassVar[Idle] = {
        "whiten": ("features", "all", "a number of components does"),
        **OfClasses.IDLE,
    }

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        require_backbone(self.backbone)


@dataclass(frozen=True)
class OfAdapters(Checked):
    """Settings of tasks with a backbone of which adapters may train.

    Parameters
    ----------
    adapters
        none: the backbone makes features once, and the model trains on these. lora: low-rank
        adapters train with the model, W + lora_alpha/rank B A. B trains, and A is frozen at a
        shared draw. Messages hold adapters and model. It needs peft.
    rank
        Number of columns of each adapter's B.
    lora_alpha
        Scale of the adapters; it is divided by their rank.
    targets
        all: every layer that takes an adapter. Otherwise names of layers, or of blocks of them,
        with commas between.
    """

    adapters: Literal["none", "lora"] = "none"
    rank: Count = 8
    lora_alpha: Positive = 8.0
    targets: NameList = "all"

    IDLE: ClassVar[Idle] = {
        "adapters": ("backbone", "none", "a pretrained network does"),
        **{
            name: ("adapters", "none", "adapters=lora does")
            for name in ("rank", "lora_alpha", "targets")
        },
    }


@dataclass(frozen=True)
class OfImages(OfAdapters, OfFeatures):
    """Settings of tasks on images.

    Parameters
    ----------
    input_shape
        auto: the data set's shape. Otherwise CHANNELSxHEIGHTxWIDTH, such as 1x28x28.
    backbone_size
        Side in pixels that images are scaled to for a backbone; auto: its own.
    backbone_mean, backbone_std
        Mean and standard deviation of the pixels that the backbone's weights were trained with, a
        number from 0 to 1 for each channel, with commas between. auto: those of its name.
    resize
        Treatment of images of another size than input_shape. none: refuse them. crop: scale them
        and cut off the rest. pad: scale them and add black. stretch: scale each side by itself.
    augment
        Random changes of training images. crop: shift by up to 4 pixels. flip: mirror every second
        one. true: both. false: neither. auto: as the data set says (CIFAR-10: true, others: false).
    corruptions
        True: score the final model on blurred, noisy and pale images, too.
    target
        Column of the labels in a Hugging Face data set or a Parquet file. Without a column y the
        default is the only ClassLabel, or label.
    """

    input_shape: str = "auto"
    backbone_size: Literal["auto"] | Count = "auto"
    backbone_mean: str = "auto"
    backbone_std: str = "auto"
    resize: Literal["none", "crop", "pad", "stretch"] = "none"
    augment: Literal["auto", "crop", "flip"] | bool = "auto"
    corruptions: bool = False
    target: str = "y"

    IDLE: ClassVar[Idle] = {
        **OfFeatures.IDLE,
        **OfAdapters.IDLE,
        **{
            f"backbone_{name}": ("backbone", "none", "a pretrained network does")
            for name in ("weights", "size", "mean", "std")
        },
    }

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        if self.input_shape != "auto":
            parse_shape(self.input_shape)
        for name in ("backbone_mean", "backbone_std"):
            try:
                numbers = parse_channels(text := getattr(self, name))
                if name == "backbone_std" and not all(number > 0 for number in numbers):
                    raise ValueError(text)
            except ValueError:
                allowed = "auto, or one or three numbers with commas between; std above 0"
                raise SettingError(name, text, allowed) from None


@dataclass(frozen=True)
class OfTexts(OfAdapters, OfFeatures):
    """Settings of the classification of texts.

    Parameters
    ----------
    text
        The column of the texts.
    target
        The column of the classes.
    id
        The column that names a row; it comes back in predictions.csv. Rows of one name belong
        together, see group.
    max_tokens
        Tokens of a text that the backbone reads; the rest is cut off. auto: its own number.
    """

    backbone: str = "hf:sentence-transformers/all-MiniLM-L6-v2"
    text: str = "text"
    target: str = "label"
    id: str = "none"
    max_tokens: Literal["auto"] | Count = "auto"

    IDLE: ClassVar[Idle] = {**OfFeatures.IDLE, **OfAdapters.IDLE}


@dataclass(frozen=True)
class OfRows(Checked):
    """Settings of tasks on tables.

    Parameters
    ----------
    target
        Column to predict.
    columns
        Columns to predict from, names with commas between.
    leave_out
        Columns not to use, names with commas between.
    id
        Column that names a row. It is no feature, and comes back in predictions.csv. Rows of one
        name belong together, see group.
    missing
        Treatment of empty cells. refuse: stop. mean, median: fill them with that of all sites, from
        sums or counts; an empty text cell becomes the levels' shares. indicator: fill in the mean,
        and add a feature that marks empty cells for each column that has some in the server's
        table.
    missing_words
        Words of empty cells beside NA, nan and the like, with commas between: cells that equal one,
        as text or as a number, are empty. none: no others.
    split
        Number of the split into training and test, prescribed or drawn.
    """

    target: str = "y"
    columns: NameList = "all"
    leave_out: NameList = "none"
    id: str = "none"
    missing: Literal["refuse", "mean", "median", "indicator"] = "refuse"
    missing_words: NameList = "none"
    split: Number = 0


@dataclass(frozen=True)
class OfNumbers(OfRows, OfGuarantees):
    """Settings of regression.

    Parameters
    ----------
    noise
        The target's noise. A number: the noise's variance, as a fraction of the target's. For FedAG
        also none (as in the paper), or cross (from the errors of the other clients' networks). For
        other methods also learned.
    """

    noise: Literal["none", "cross", "learned"] | Positive = "cross"
