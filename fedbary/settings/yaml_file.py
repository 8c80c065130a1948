"""The files that settings are read from."""

from __future__ import annotations

import re
from collections import Counter
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fedbary.data.forms import content_of
from fedbary.errors import SettingError
from fedbary.settings.aliases import require_short

ROOT = Path(__file__).resolve().parents[2]
"""The clone, or the Flower app's bundle, that this package lies in."""

_PACKAGED = Path(__file__).resolve().parents[1] / "simulation.yaml"

DEFAULTS = _PACKAGED if _PACKAGED.is_file() else ROOT / "simulation.yaml"
"""The file of every default: in this package in the wheel, beside it in a clone."""

_SURPRISING = ("bool", "int", "timestamp")


class _Loader(yaml.SafeLoader):
    """Reads YAML like version 1.2 where 1.1 surprises; a repeated key is an error.

    `no`, `on`, `010`, `12:30` and dates are texts.
    """

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in kinds if tag.rpartition(":")[2] not in _SURPRISING]
        for first, kinds in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping of different keys."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            said = f"the key {Counter(keys).most_common(1)[0][0]!r} stands twice"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|false|True|False)\Z"), "tfTF"
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)\Z"), "-+0123456789"
)


@lru_cache(maxsize=32)
def _loaded(text: str) -> Any:
    return yaml.load(text, _Loader)


def read_yaml(file: Path) -> dict[str, Any]:
    """Return a YAML file's mapping; a SettingError names the file if it cannot be read."""
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
