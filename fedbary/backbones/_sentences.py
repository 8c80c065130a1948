"""A frozen network of texts: a tokeniser, a body that answers its tokens, and a pooling."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.backbones._body import Backbone, Transform
from fedbary.variational.frozen import hash_tensors

NOTHING = -1
"""Filler of a row of tokens after a text's last one."""

LENGTHS = (16, 32, 64, 128, 256, 512)
"""Tokens of a batch: a feature's last bits depend on them, and so on its own text alone."""

LONGEST_WORD = 100
"""Characters a token; longer texts are cut before they are tokenised."""

PROBE = "Ünïcode, CASE and 42 numbers: it's a   probe."
"""Text that is tokenised for the digest."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """Takes texts to tokens, as the model's own tokeniser does.

    Attributes
    ----------
    tokeniser : object
        That of transformers, with a backend of tokenizers.
    longest : int
        Tokens of a text that are kept, the special ones among them.
    """

    tokeniser: Any
    longest: int

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """Return tokens (N, longest) int32, filled with `NOTHING`, and how many texts were cut."""
        tokens = torch.full((len(texts), self.longest), NOTHING, dtype=torch.int32)
        if not texts:
            return tokens, 0
        most, cut = LONGEST_WORD * self.longest, 0
        given = [text[:most] for text in texts]
        found = self.tokeniser(given, truncation=True, max_length=self.longest, padding=False)
        for row, held in enumerate(found.encodings):
            tokens[row, : len(held.ids)] = torch.tensor(held.ids, dtype=torch.int32)
            cut += bool(held.overflowing) or len(texts[row]) > most
        return tokens, cut

    def empty(self, tokens: Tensor) -> Tensor:
        """Return which rows of tokens (N, L) have none but special ones, (N,) bool."""
        return (tokens >= 0).sum(1) <= self.tokeniser.num_special_tokens_to_add()

    @property
    def said(self) -> str:
        """Identity of the tokeniser: its vocabulary, its reading of a text, its length."""
        words = sorted(self.tokeniser.get_vocab().items(), key=lambda pair: (pair[1], pair[0]))
        probe = self.tokeniser(PROBE, truncation=True, max_length=self.longest)["input_ids"]
        return f"{words} {probe} {self.longest}"


class Pooled(nn.Module):
    """A model of transformers whose answers to a text's tokens become one vector.

    Parameters
    ----------
    model : nn.Module
        Answers with `last_hidden_state`, (N, L, D).
    pooling : str
        ``mean``: Σ_l m_l h_l / Σ_l m_l over the text's own tokens, m_l = 1; ``max`` likewise;
        ``cls``: that of the first token.
    is_normalised : bool
        True: the vector is divided by its length.
    filler : int
        Token after the end of a text; it is masked.
    """

    def __init__(self, model: nn.Module, pooling: str, is_normalised: bool, filler: int) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling
        self.is_normalised, self.filler = is_normalised, filler

    def forward(self, tokens: Tensor) -> Tensor:
        """Return vectors (N, D) of tokens (N, L), `NOTHING` after a text's end."""
        own = tokens >= 0
        ids = torch.where(own, tokens, self.filler).long()
        hidden: Tensor = self.model(input_ids=ids, attention_mask=own.long()).last_hidden_state
        mask = own.unsqueeze(2)
        if self.pooling == "cls":
            found = hidden[:, 0]
        elif self.pooling == "max":
            found = hidden.masked_fill(~mask, -torch.inf).amax(1)
        else:
            found = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return functional.normalize(found, dim=1) if self.is_normalised else found

    @property
    def said(self) -> str:
        """Pooling of the model's answers."""
        return f"{self.pooling} {self.is_normalised}"


@dataclass(frozen=True)
class Shortened(Transform):
    """Cuts tokens (N, L) after the end of the longest text; a graph keeps all of them."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return tokens (N, l), l ≤ L."""
        if torch.compiler.is_exporting():
            return tokens
        return tokens[:, : int((tokens >= 0).sum(1).max())]


@dataclass(frozen=True, eq=False)
class TextBackbone(Backbone):
    """A frozen body for texts; an encoder comes before it.

    Attributes
    ----------
    encoder : Encoder
        Tokeniser of a text.
    """

    encoder: Encoder

    at_once: ClassVar[int] = 8

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the features (N, D) of tokens (N, L), in one pass."""
        found: Tensor = self.body(tokens)
        return found

    def features(self, tokens: Tensor) -> Tensor:
        """Return the features (N, D) of tokens (N, L), on the CPU; texts of like length together.

        Raises
        ------
        SettingError
            If one is not finite.
        """
        tokens = tokens.cpu()
        counts, longest = (tokens >= 0).sum(1), tokens.shape[1]
        lengths = [length for length in LENGTHS if length < longest] + [longest]
        parts, places, before = [], [], -1
        for length in lengths:
            rows = ((counts > before) & (counts <= length)).nonzero()[:, 0]
            before = length
            if len(rows):
                parts.append(super().features(tokens[rows, :length]))
                places.append(rows)
        if not parts:
            return super().features(tokens)
        return torch.cat(parts)[torch.cat(places).argsort()]

    def width(self, shape: tuple[int, ...]) -> int:
        """Return D, whatever the number of tokens."""
        return super().width((1,))

    @cached_property
    def digest(self) -> str:
        """A hash of weights, tokeniser, length and pooling, the same wherever the model lies."""
        said = f"{getattr(self.body, 'said', '')} {self.encoder.said}"
        found = hashlib.blake2b(said.encode(), digest_size=16)
        hash_tensors(found, self.body.state_dict())
        return found.hexdigest()
