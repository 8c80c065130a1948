"""Texts and a class for each of them.

A frozen network of transformers turns each text into features, once, and the model trains on these.
Or the network's adapters train with the model, on tokens. The texts are a column of a table. Texts
and tokens never leave their site: messages hold the model, and sums of features if the settings
need them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbary.backbones import TextBackbone, load_text
from fedbary.backbones._transformers import NOTHING
from fedbary.data import deal
from fedbary.data.batches import Augment
from fedbary.data.deal import Shard
from fedbary.data.examples import Examples
from fedbary.data.forms import Kept, source_of, source_state, user_path
from fedbary.data.grouping import id_repeats
from fedbary.data.image_layout import ImageLayout, parse_classes
from fedbary.data.images import Dataset
from fedbary.data.sites import Site
from fedbary.data.tables import Choice, load_frame, perhaps, plain
from fedbary.data.text_rows import clean, dataset_of, read_texts, text_examples
from fedbary.errors import CellError, SettingError
from fedbary.predictive import Prediction
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfTexts
from fedbary.tasks._classes import predicts_classes
from fedbary.tasks._network import on_backbone
from fedbary.tasks._task import Task
from fedbary.tasks._values import Condition, Facts, Outcome
from fedbary.tasks.classification import Classification

UNTOLD = "a table of texts that can be read"
"""Message to the server about a site's file; the site's own log says more."""


_rows: Kept[Examples] = Kept(64)
_dataset = lru_cache(maxsize=4)(dataset_of)


@lru_cache(maxsize=64)
def _own_shard(rows: Examples, dealt: deal.Deal, key: int) -> Shard:
    known = rows.known()
    return deal.site_shard(*known.examples, dealt, key, known.groups)


def of_texts(settings: Settings) -> Iterator[Condition]:
    """Yield conditions on the settings of this task alone."""
    own = settings.of_task(OfTexts)
    known = own.backbone.startswith("hf:")
    yield "backbone", known, "hf:OWNER/NAME or hf:PATH, a model of transformers, for task=text"
    flat = settings.model not in ("cnn", "resnet20")
    yield "model", flat, "linear, mlp or a network of yours for task=text"
    yield "text", own.text != own.target, "another column than target"


class Text(Classification):
    """Classification of texts by a model on the features of a network.

    Inputs in their own units are tokens (N, L) int32, −1 after a text's last one.
    """

    Parameters = OfTexts
    reads = "data/texts read"
    conditions = (predicts_classes, on_backbone, of_texts)
    private = False
    unused = Task.unused

    @cached_property
    def words(self) -> OfTexts:
        """Settings of this task that images do not have."""
        return self.settings.of_task(OfTexts)

    @cached_property
    def pretrained(self) -> TextBackbone:
        """The network that makes features of texts."""
        by, own = self.settings, self.words
        how = own.backbone_weights, own.max_tokens, by.download
        return load_text(own.backbone, *how, torch_device(by))

    def _read(self, name: str, classes: tuple[str, ...] | None) -> Examples:
        """Return a source's texts, with labels for some classes, or for its own; None: without."""
        by, own, encode = self.settings, self.words, self.pretrained.encoder
        choice = Choice() if classes is None else self._choice
        where = name, by.data_dir, own.target, by.download, choice

        def read() -> Examples:
            frame = load_frame(*where)
            if classes is None:
                return read_texts(replace(frame, target=None), own.text, encode)
            return read_texts(frame, own.text, encode, classes)

        state = source_state(source_of(name), user_path(by.data_dir).absolute())
        return _rows.get((*where, own.text, encode, classes), state, read)

    @property
    def held(self) -> Dataset:
        """The texts that the settings name, as tokens."""
        rows, id = self._read(self.settings.dataset, self._classes), self.words.id
        if id not in ("none", *rows.unused):
            raise CellError("id", id, perhaps(id, rows.source, rows.unused))
        return _dataset(rows)

    @property
    def _choice(self) -> Choice:
        """The columns that name texts and groups."""
        id = "" if self.words.id == "none" else plain(self.words.id)
        return Choice(id=id, group=plain(self.group))

    @property
    def _classes(self) -> tuple[str, ...]:
        """The classes that the settings name; none for the data's own."""
        return () if self.words.classes == "auto" else parse_classes(self.words.classes)

    def signature(self) -> ImageLayout:
        """Return the number of tokens of a text, the classes, and the features made of it."""
        by = self.pretrained
        shape = (by.encoder.longest,)
        classes = self._classes if self.settings.dataset == "none" else self.held.classes
        return ImageLayout(shape, classes, by.digest, by.width(shape) if self.backbone else 0)

    def own_shard(self, site: Site, signature: ImageLayout) -> Shard:
        """Return the texts of a site's own table, as tokens, and their classes.

        Raises
        ------
        CellError
            If it cannot be had or does not fit; the part that may be told quotes none of its
            content.
        """
        try:
            rows = self._read(site.data_path, signature.classes)
            return _own_shard(rows, self.deal, site.key)
        except CellError as error:
            told = error.told or "columns or classes that do not fit"
            raise CellError(error.setting, error.value, error.allowed, told) from None
        except Exception as error:  # any error of reading a file may quote it
            raise CellError("data-path", type(error).__name__, UNTOLD, UNTOLD) from None

    def notes(self) -> tuple[str, ...]:
        """Return lines on the table of texts, and on the language of the default's network."""
        english = "MiniLM knows English; for other languages choose another backbone="
        is_usual = self.words.backbone == OfTexts.backbone
        groups = None if self.settings.dataset == "none" else self.held.groups
        repeats = id_repeats(groups, self.group, self.words.id)
        return (*super().notes(), *repeats, *([english] if is_usual else []))

    def site_notes(self, site: Site, signature: ImageLayout) -> tuple[str, ...]:
        """Return lines on a site's own texts that are cut or left out."""
        if site.partition is not None:
            return ()
        rows = self._read(site.data_path, signature.classes)
        said = (f"{len(rows.x) - len(rows.unknown)} texts", *rows.notes)
        repeats = id_repeats(rows.groups, self.group, self.words.id)
        return (f"{site.data_path}: {'; '.join(said)}", *repeats)

    def augments(self, site: Site) -> Augment:
        """Change nothing at random."""
        return False

    def zeros(self, signature: ImageLayout) -> Tensor:
        """Return two texts of one token."""
        tokens = torch.full((2, *signature.shape), NOTHING, dtype=torch.int32)
        tokens[:, 0] = 0
        return tokens

    def examples(self, path: Path, signature: ImageLayout) -> Examples:
        """Read the texts of a table."""
        own = self.words
        how = own.text, own.target, self._choice, signature.classes, self.pretrained.encoder
        return text_examples(path, *how)

    def inputs(self, x: Tensor | Sequence[str], signature: ImageLayout) -> Tensor:
        """Return the tokens of texts; tokens stay as they are.

        Raises
        ------
        SettingError
            If there are no texts, or one is empty.
        """
        if isinstance(x, Tensor):
            return x
        if isinstance(x, str) or not all(isinstance(text, str) for text in x):
            raise SettingError(
                "x", f"a {type(x).__name__}", "a sequence of texts, or tokens (N, L)"
            )
        tokens, _ = self.pretrained.encoder(list(map(clean, x)))
        if empty := self.pretrained.encoder.empty(tokens).nonzero()[:, 0].tolist():
            raise SettingError("texts", f"text {empty[0] + 1} is empty", "texts that are not empty")
        return tokens

    def compared(self, examples: Examples, facts: Facts, said: Any) -> tuple[str, ...]:
        """Compare nothing: tokens have no range."""
        return ()

    def foreign(self) -> Tensor | None:
        """Return the texts of `ood_dataset`, as tokens; None for none."""
        if self.words.ood_dataset == "none":
            return None
        return self._read(self.words.ood_dataset, None).known().x

    def causes(
        self, outcome: Outcome, prediction: Prediction, x: Tensor, y: Tensor
    ) -> Iterator[str]:
        """Yield that most scored texts are unknown to the backbone, and causes in the labels."""
        tokens = deal.evaluation_data(self.held, self.deal)[0]
        unknown = int(self.pretrained.encoder.unknown(tokens).sum())
        if 2 * unknown > len(tokens):
            said = (
                f"{unknown} of {len(tokens)} scored texts are mostly words unknown to the backbone"
            )
            yield f"{said}; another backbone= may know them"
        yield from super().causes(outcome, prediction, x, y)

    def rival(self) -> None:
        """Return None: a linear model of tokens is no rival."""
