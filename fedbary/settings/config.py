"""Typed settings: their types (`model`), and their sources (`resolving`, `files`)."""

from fedbary.settings.model import Settings, registered
from fedbary.settings.owners import bookkeeping
from fedbary.settings.resolving import (
    BARYCENTRE,
    completed,
    parameters_of,
    parse_overrides,
    resolve,
    validated,
)
from fedbary.settings.yaml_file import DEFAULTS, ROOT, read_yaml

__all__ = [
    "BARYCENTRE",
    "DEFAULTS",
    "ROOT",
    "Settings",
    "bookkeeping",
    "completed",
    "parameters_of",
    "parse_overrides",
    "read_yaml",
    "registered",
    "resolve",
    "validated",
]
