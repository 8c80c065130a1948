"""The files that settings are read from."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fedbary.errors import SettingError
from fedbary.paths import content_of
from fedbary.settings.aliases import require_short

ROOT = Path(__file__).resolve().parents[2]
"""The clone, or the Flower app's bundle, that this package lies in."""

_PACKAGED = Path(__file__).resolve().parents[1] / "simulation.yaml"

DEFAULTS = _PACKAGED if _PACKAGED.is_file() else ROOT / "simulation.yaml"
"""The file of every default: in this package in the wheel, beside it in a clone."""


_loaded = lru_cache(maxsize=32)(yaml.safe_load)


def read_yaml(file: Path) -> dict[str, Any]:
    """Return what a YAML file says under names; a SettingError names the file if it cannot."""
    try:
        text = content_of(file).decode()
        require_short(text)
        values = deepcopy(_loaded(text))
    except FileNotFoundError:
        raise SettingError("settings file", str(file), "the path of a YAML file") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise SettingError(f"settings file {file}", error, "readable YAML") from None
    if not isinstance(values, dict):
        raise SettingError("settings file", str(file), "lines of the form key: value")
    return values
