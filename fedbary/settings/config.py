"""Typed settings: their types (`model`), and their sources (`resolving`, `files`)."""

from fedbary.settings.model import Settings, registered
from fedbary.settings.owners import bookkeeping
from fedbary.settings.resolving import completed, parse_overrides, resolve, validated
from fedbary.settings.yaml_file import DEFAULTS, ROOT, read_yaml

__all__ = [
    "DEFAULTS",
    "ROOT",
    "Settings",
    "bookkeeping",
    "completed",
    "parse_overrides",
    "read_yaml",
    "registered",
    "resolve",
    "validated",
]
