"""Images and their classes.

Predictions are the mean softmax of networks drawn from the global posterior. Scores are accuracy,
NLL, ECE and Brier score; at the end also selective accuracy and the detection of
out-of-distribution images (`ood_dataset`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbary.backbones import Backbone
from fedbary.data import deal
from fedbary.data.batches import Augment, require_pixels, scale_pixels
from fedbary.data.deal import Shard
from fedbary.data.examples import Examples
from fedbary.data.image_examples import own_notes, own_shard, read_images
from fedbary.data.image_layout import ImageLayout
from fedbary.data.images import Dataset, Normaliser, pixel_sums
from fedbary.data.readers import saved_sets
from fedbary.data.sites import Site
from fedbary.errors import SettingError
from fedbary.parts.parameters import Checked
from fedbary.predictive import Prediction
from fedbary.runs import schema
from fedbary.runs.run_folder import read_layout
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfImages
from fedbary.tasks import _beyond, _images, _network, _sums
from fedbary.tasks._classes import Classes, predicts_classes
from fedbary.tasks._network import network
from fedbary.tasks._task import moved
from fedbary.tasks._values import Conditions, Dialogue, Facts, Graph, Outcome, Unused


class Classification(Classes):
    """Classification of images, scored by the mean softmax of drawn networks."""

    Parameters: type[Checked] = OfImages
    reads = "data/images read .npz .parquet"
    conditions: Sequence[Conditions] = (predicts_classes, _images.conditions, _network.on_backbone)

    private = True

    @staticmethod
    def unused(settings: Settings) -> Iterator[Unused]:
        """Yield the column of the labels where neither the data nor a site's own have columns."""
        of_sites, source = settings.dataset == "none", settings.source
        if not (of_sites or source.has_columns or saved_sets(source.path(settings.data_dir))):
            yield "target", (f"dataset={settings.dataset}", "those with columns do")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if self.own.normalise != "none":
            self.facts = "normaliser"

    @cached_property
    def own(self) -> OfImages:
        """The task's own settings."""
        return self.settings.of_task(OfImages)

    def check(self, own_data: bool) -> None:
        """Raise a SettingError if the device, the data sets, the model or the split fail."""
        super().check(own_data)
        self.foreign()
        if self.pretrained is not None and self.settings.dataset != "none":
            self.pretrained.transform.require(self.held.x_train)
        if self.own.corruptions:
            require_pixels(scale_pixels(deal.evaluation_data(self.held, self.deal)[0]))
        if self.own.augment not in ("auto", False) and len(self.signature().shape) == 1:
            raise SettingError("augment", self.own.augment, "auto or false for features")

    @property
    def held(self) -> Dataset:
        """The images that the settings name."""
        return _images.load_dataset(self.settings)

    def signature(self) -> ImageLayout:
        """Return the shape and the classes, and the features made of the images."""
        layout = _images.layout_of(self.settings)
        if (by := self.pretrained) is None:
            return layout
        width = by.width(layout.shape) if self.backbone else 0
        return replace(layout, backbone=by.digest, width=width)

    @cached_property
    def pretrained(self) -> Backbone | None:
        """The pretrained network that the settings name; None for none."""
        return _images.backbone_of(self.settings)

    @property
    def backbone(self) -> Backbone | None:
        """The network that makes features of the images, none of which trains; None for none."""
        return None if _network.has_adapters(self.settings) else self.pretrained

    def shard(self, site: Site, signature: ImageLayout) -> Shard:
        """Return a site's images, or their features, and labels, on the device."""
        _images.require_same(self.pretrained, signature)
        return self.seen(self._images_of(site, signature), site.state_path)

    def raw(self, site: Site, signature: ImageLayout) -> Shard:
        """Return the images that a site holds, and no features of them."""
        return self._images_of(site, signature)

    def _images_of(self, site: Site, signature: ImageLayout) -> Shard:
        if site.partition is None:
            return self.own_shard(site, signature)
        held = self.held
        _images.require_fit(held, signature)
        return deal.client_shard(held, self.deal, site.partitions, site.partition)

    def own_shard(self, site: Site, signature: ImageLayout) -> Shard:
        """Return the inputs and labels of a site's own data."""
        by = *self._own_by(site, signature), self.group
        found = own_shard(by, self.deal, site.key)
        if self.pretrained is not None:
            self.pretrained.transform.require(found.x)
        return found

    def _own_by(self, site: Site, signature: ImageLayout) -> tuple[str, ImageLayout, str, str]:
        return site.data_path, signature, self.own.resize, self.own.target

    def seen(self, shard: Shard, folder: str = "") -> Shard:
        """Return a shard as the model sees it but for the normalisation, on the device."""
        if self.backbone is not None:
            folder = folder or self.settings.data_dir
            shard = _images.of_shard(shard, self.backbone, folder)
        return moved(shard, torch_device(self.settings))

    def require_same_data(self, folder: Path) -> None:
        """Raise a SettingError unless data and backbone are those of the run in a folder."""
        super().require_same_data(folder)
        _images.require_same(self.pretrained, read_layout(folder, self.signature_from))

    def notes(self) -> tuple[str, ...]:
        """Return lines on the data set's folder and its oddities, and on the backbone."""
        said: list[str] = []
        if (by := self.pretrained) is not None:
            said.append(f"{by.name}: {by.said}")
            own_file = self.own.backbone_weights != "auto"
            if own_file and getattr(self.settings, "backbone_mean", "") == "auto":
                said.append(f"{by.name}: is that the recipe of {self.own.backbone_weights}?")
        return (*(() if self.settings.dataset == "none" else self.held.notes), *said)

    def site_notes(self, site: Site, signature: ImageLayout) -> tuple[str, ...]:
        """Return lines on a site's own folder."""
        return own_notes(*self._own_by(site, signature)) if site.partition is None else ()

    def server_shard(self) -> Shard:
        """Return the images, or features, and labels that the server learns from, on the device."""
        return self.seen(super().server_shard())

    def sample(self, count: int) -> tuple[Tensor, Tensor, int]:
        """Return some training images and labels, on the device, and how many there are.

        In place of components of features stand as many features: the time they take is the same.
        """
        device = torch_device(self.settings)
        x, y = self.held.examples
        x = self.backbone.features(x[:count]) if self.backbone else x[:count]
        if self.own.features != "all":
            x = x[:, : self.own.features]
        return x.to(device), y[:count].to(device), len(y)

    def make_model(self, signature: ImageLayout) -> nn.Module:
        """Return the network for images of that shape, or for their features."""
        _images.require_same(self.pretrained, signature)
        outputs, seed = len(signature.classes), self.seed("model")
        shape = _images.shape_of(self.settings, signature)
        if self.pretrained and _network.has_adapters(self.settings):
            return _network.adapted_network(self.settings, self.pretrained, shape, outputs, seed)
        return network(self.settings, shape, outputs, seed)

    def augments(self, site: Site) -> Augment:
        """Random changes of images; a site's own images change only if the settings say so.

        A backbone sees each image once, unchanged.
        """
        if self.backbone is not None:
            return False
        if site.partition is None:
            return False if self.own.augment == "auto" else self.own.augment
        return _images.augments(self.settings)

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return a shard with its images normalised."""
        by = Normaliser.from_facts(facts)
        return replace(shard, x=by(shard.x), x_held_out=by(shard.x_held_out))

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer with the sums of each channel over the pixels of the training images.

        Features are summed by column; another question is for their second moments.
        """
        if question == _sums.MOMENTS:
            return _sums.answer_moments(shard.x, asked)
        if question != _sums.NAME:
            return super().answer(question, shard, asked, tensors)
        return _sums.told(pixel_sums(shard.x, _sums.shift_of(asked)))

    def ask_first(self) -> Dialogue[dict[str, Tensor]]:
        """Ask for the sums of each channel; return the normalisation, with a projection."""
        channels, *sides = self.signature().seen
        sums = yield from _sums.ask(channels, pixels=math.prod(sides) if sides else 0)
        scale = Normaliser.from_sums(sums)
        if self.own.features != "all":
            scale = yield from _images.ask_projection(scale, sums.count, self.settings)
        return scale.facts()

    def scored_by_clients(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """Return the test images, as the model takes them, and labels."""
        by = Normaliser.from_facts(facts) if facts else None
        by_device = self.held, self.deal, torch_device(self.settings)
        return _scored(*by_device, by, self.backbone, self.settings.data_dir)

    def at_once(self, x: Tensor) -> int:
        """Return the number of inputs that networks answer at a time."""
        return _network.AT_ONCE if _network.has_adapters(self.settings) else super().at_once(x)

    def taken(self, x: Tensor, facts: Facts) -> Tensor:
        """Return images, or their features, normalised; without facts as they are, bytes too."""
        if self.pretrained is not None:
            self.pretrained.transform.require(x)
        if self.backbone is not None:
            x = self.backbone.features(x).to(torch_device(self.settings))
        return Normaliser.from_facts(facts)(x) if facts else x

    def traced(self, x: Tensor, facts: Facts) -> Tensor:
        """Return the same in plain operations, for a graph."""
        x = x if self.backbone is None else self.backbone(x)
        return Normaliser.from_facts(facts)(x) if facts else x

    def graph(self, outcome: Outcome, facts: Facts, seed: int) -> Graph:
        """Return what `predict` does to a batch; adapters without draws are merged."""
        return super().graph(_network.merge_shared_adapters(outcome), facts, seed)

    def examples(self, path: Path, signature: ImageLayout) -> Examples:
        """Read an ``.npz`` file, an image, or a folder of images."""
        return read_images(path, signature, self.own.resize, self.group)

    def idle(self, facts: Facts) -> tuple[str, ...]:
        """Return a line on channels or features without spread."""
        count = int(facts["std"].isinf().sum()) if facts else 0
        what = f"{count} of {len(facts['std'])} channels or features" if count else ""
        return (f"{what} have no spread in training, and no effect",) if count else ()

    def compared(
        self, examples: Examples, facts: Facts, said: Mapping[str, Any] | None
    ) -> tuple[str, ...]:
        """Compare the pixels' range."""
        return () if said is None else _images.compared(examples.x, said)

    def at_end(
        self, outcome: Outcome, prediction: Prediction, x: Tensor, y: Tensor, facts: Facts
    ) -> dict[str, Any]:
        """Return the worth of the uncertainty at the end.

        These are selective accuracy, scores on corrupted images, detection of
        out-of-distribution data, and the spread of the ECE over draws of the networks.
        """
        line = super().at_end(outcome, prediction, x, y, facts)
        temperature = self.temperature(outcome) or 1.0

        def predicted(x: Tensor, *again: int) -> Prediction:
            return self.predict_global(outcome, x, facts, *again).one_by_one().tempered(temperature)

        if self.settings.bayesian_layers > 0:
            line[schema.MONTE_CARLO] = _beyond.spread_over_draws(
                prediction, y, lambda i: predicted(x, i)
            )
        if self.own.corruptions:
            line[schema.CORRUPTED] = _beyond.on_corrupted(
                deal.evaluation_data(self.held, self.deal)[0],
                y,
                lambda images: predicted(self.taken(images.to(y.device), facts)),
                lambda kind, strength: self.seed("corruption", kind, strength),
                self.own.ece_bins,
            )
        if (foreign := self.foreign()) is not None:
            there = predicted(self.taken(foreign, facts))
            line[schema.OOD] = _beyond.detection(prediction, there)
        return line

    def foreign(self) -> Tensor | None:
        """Return the test images of `ood_dataset`; None for none."""
        return _images.ood_images(self.settings)


@lru_cache(maxsize=4)
def _scored(
    held: Dataset,
    dealt: deal.Deal,
    device: torch.device,
    by: Normaliser | None,
    backbone: Backbone | None,
    folder: str,
) -> tuple[Tensor, Tensor]:
    """Return the inputs that models are scored on, in their form, and labels, on a device."""
    x, y = deal.evaluation_data(held, dealt)
    x = _images.kept_features(x, backbone, folder) if backbone else x
    return (by(x) if by else x).to(device), y.to(device)
