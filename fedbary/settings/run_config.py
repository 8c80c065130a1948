"""Settings as the keys of a Flower run's config."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from fedbary.errors import SettingError
from fedbary.settings.config import Settings, parse_overrides, resolve

_PARTS = re.compile(
    r"""(?P<comment>(?<!\S)\#[^\n]*) | '[^']*' | "(?:\\.|[^"\\])*" | \\. | .""",
    re.DOTALL | re.VERBOSE,
)


def resolve_run_config(run_config: Mapping[str, Any]) -> Settings:
    """Return the settings of a Flower run.

    `flwr run --run-config` may set only keys that pyproject.toml lists. It lists every setting,
    each "", which means the default of simulation.yaml. A hyphen in a key counts as an underscore.
    The key `settings` holds words as on the command line, ``'settings="rule=WB rounds=3"'``. Words
    that give every setting are taken as they are.

    Raises
    ------
    SettingError
        If a key or a word names no setting, holds what is not allowed, or has no use in the run; or
        if a setting has both.
    """
    return resolve(given_in(run_config))


def given_in(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run config gives, by name, those among its words too.

    Raises
    ------
    SettingError
        If the words cannot be read, or a setting has two values.
    """
    given = {key.replace("-", "_"): value for key, value in run_config.items() if value != ""}
    try:
        words = shlex.split(_without_comments(str(given.pop("settings", ""))))
    except ValueError as error:
        raise SettingError("settings", error, "words of the form key=value") from None
    named = parse_overrides(words)
    for name in given.keys() & named.keys():
        raise SettingError(name, given[name], f"one value; `settings` has {name}={named[name]}")
    return given | named


def _without_comments(text: str) -> str:
    """Return words without comments, which begin with a # that begins a word, as in a shell."""
    return "".join(part[0] for part in _PARTS.finditer(text) if not part["comment"])


def to_run_config(settings: Settings) -> str:
    """Return the TOML of a run config that `resolve_run_config` reads as these settings."""
    words = shlex.join(f"{key}={value}" for key, value in settings.model_dump().items())
    return f"settings = {json.dumps(words, ensure_ascii=False)}\n"
