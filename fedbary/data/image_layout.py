"""Layout that all sites of an image classification share: the shape of an image and the classes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbary.errors import SettingError
from fedbary.texts import composed, names_in

MIN_SIDE = 5
"""The least side in pixels: a shorter axis may be channels. Crops need as many, too."""


@dataclass(frozen=True)
class ImageLayout:
    """The shape of an image and the classes; the server sends them with every message.

    Parameters
    ----------
    shape : tuple of int
        Channels (1 or 3), height and width; of features their number.
    classes : tuple of str
        Name of each class, in the order of the labels 0, 1, …
    backbone : str
        The digest of the network that makes features of images; "" for none.
    width : int
        Number of features that the model sees; 0 if it sees images.
    """

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    backbone: str = ""
    width: int = 0

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape of what the model sees: the images, or their features."""
        return (self.width,) if self.width else self.shape

    def config(self) -> dict[str, list[int] | list[str] | str | int]:
        """Return what a ConfigRecord holds of it."""
        of_features: dict[str, str | int] = {"backbone": self.backbone, "width": self.width}
        return {
            "input-shape": list(self.shape),
            "class-names": list(self.classes),
            **(of_features if self.backbone else {}),
        }

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> ImageLayout:
        """Return the layout that a ConfigRecord describes."""
        return ImageLayout(
            tuple(int(side) for side in config["input-shape"]),
            tuple(composed(str(name)) for name in config["class-names"]),
            str(config.get("backbone", "")),
            int(config.get("width", 0)),
        )


def parse_shape(text: str) -> tuple[int, ...]:
    """Read an image shape such as ``1x28x28``, or the number of features, such as ``1280``.

    Raises
    ------
    SettingError
        If it is none.
    """
    if re.fullmatch(r"[1-9]\d{0,6}", text):
        return (int(text),)
    match = re.fullmatch(r"([13])[x×](\d{1,4})[x×](\d{1,4})", text)
    sides = [int(number) for number in match.groups()] if match else [0, 0, 0]
    if min(sides[1:]) < MIN_SIDE:
        allowed = "auto, or CHANNELSxHEIGHTxWIDTH with 1 or 3 channels and sides from "
        allowed += f"{MIN_SIDE} to 9999; or a number of features"
        raise SettingError("input_shape", text, allowed)
    return sides[0], sides[1], sides[2]


def parse_channels(text: str) -> tuple[float, ...]:
    """Read a number for each channel, such as ``0.485,0.456,0.406``, or one for all; auto: none.

    Raises
    ------
    ValueError
        If it is none.
    """
    numbers = () if text == "auto" else tuple(map(float, text.split(",")))
    if len(numbers) not in (0, 1, 3) or not all(map(math.isfinite, numbers)):
        raise ValueError(text)
    return numbers


def of_pictures(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width, which pictures have.

    Raises
    ------
    SettingError
        If inputs are features.
    """
    if len(shape) != 3:
        raise SettingError("data", "pictures", f"an .npz file with {shape[0]} features an example")
    return shape[0], shape[1], shape[2]


def parse_classes(text: str) -> tuple[str, ...]:
    """Read the classes: their number, which names them 0, 1, …, or their names with commas.

    A name that holds a comma stands in quotes.

    Raises
    ------
    SettingError
        If there are fewer than two, or two of one name.
    """
    if text.isdecimal():
        names = tuple(str(label) for label in range(min(int(text), 100_000)))
    else:
        names = tuple(map(composed, names_in(text)))
    if len(names) < 2 or len(set(names)) < len(names) or "" in names:
        allowed = "auto, a number from 2 up, or different names with commas between"
        raise SettingError("classes", text, allowed)
    return names
