"""Output of `fedbary explain`: parts and settings, read from the code."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

from fedbary.attacks import Hostile, attack_class, attack_classes
from fedbary.data.partition import partition
from fedbary.errors import SettingError
from fedbary.parts.imports import own_function
from fedbary.parts.parameters import NONE, Parameter
from fedbary.parts.registry import is_factory, modules, predictors, rules
from fedbary.settings.config import DEFAULTS, Settings
from fedbary.settings.modes import MODES
from fedbary.settings.owners import (
    kind_of,
    method_kind,
    methods,
    owned,
    rule_name,
    task_kind,
)
from fedbary.settings.partition_names import classes, partitioners

_ROOMS = (
    ("task", "tasks"),
    ("inference", "inference"),
    ("dataset", "data/images"),
    ("dataset", "data/tables"),
    ("model", "models"),
    ("tracker", "runs/tracking"),
)
"""Settings whose values are modules, each with the folder of these."""


@dataclass(frozen=True)
class Part:
    """A value that a setting may have, with its file's description.

    Parameters
    ----------
    setting, name : str
        As in ``setting=name``.
    text : str
        The docstring of its module; the first line is its purpose.
    """

    setting: str
    name: str
    text: str

    @property
    def purpose(self) -> str:
        """The first line of the text."""
        return self.text.partition("\n")[0]


def parts() -> Iterator[Part]:
    """Yield every part that a setting may name, and every protocol."""
    for method in methods().values():
        yield Part(
            "method", method.name, _docstring("methods", method.__module__.rpartition(".")[2])
        )
    for name, (_, text) in rules().items():
        yield Part("rule", name, text)
    for setting, room in _ROOMS:
        for module in modules(room):
            yield Part(setting, module, _docstring(room, module))
    for word in predictors():
        yield Part("predictive", word, _of_class(kind_of(word)))
    for setting, kinds in (("attack", attack_classes()), ("mode", MODES)):
        for name, kind in kinds.items():
            yield Part(setting, name, _of_class(kind))
    yield from _schemes()
    for name in partitioners():
        yield Part("partition", name, inspect.getdoc(classes()[name]) or "")
    yield from _protocols()


def overview() -> str:
    """Return every part in a line, by the setting that chooses it."""
    lines: list[str] = []
    heading = ""
    for part in parts():
        if part.setting != heading:
            heading = part.setting
            lines += ["", f"{heading}="]
        lines.append(f"  {part.name:<18} {part.purpose}")
    lines += ["", "fedbary explain PART, or the name of a setting, says more."]
    return "\n".join(lines[1:])


def explained(name: str) -> str:
    """Return the explanation of a part or a setting.

    Raises
    ------
    SettingError
        If there is neither of that name.
    """
    found = [part for part in parts() if part.name.lower() == name.lower()]
    if is_factory(name):
        found = [_own(name)]
    meanings = settings()
    texts = [f"{part.setting}={part.name}\n\n{part.text}{_parameters(part)}" for part in found]
    if name in meanings:
        texts.append(meanings[name])
    whose: dict[str, list[str]] = {}
    for part in parts():
        if parameter := owned(part.setting, part.name).get(name):
            whose.setdefault(_line(parameter), []).append(f"{part.setting}={part.name}")
    texts += [f"with {', '.join(found)}: {line}" for line, found in whose.items()]
    if not texts:
        words = {word for part in parts() for word in owned(part.setting, part.name)}
        known = [*(part.name for part in parts()), *meanings, *sorted(words)]
        close = difflib.get_close_matches(name, known, n=3)
        hint = f", perhaps {' or '.join(close)}" if close else ""
        raise SettingError("part", name, f"a part that `fedbary explain` lists, or a setting{hint}")
    return "\n\n".join(texts)


def _own(name: str) -> Part:
    """Return a rule, an attack, a method or a task of one's own, by what it is."""
    own = own_function("part", name, "NAME")
    text = inspect.getdoc(import_module(name.partition(":")[0])) or ""
    if not isinstance(own, type):
        rule_name(name)
        return Part("rule", name, text)
    if issubclass(own, Hostile):
        return Part("attack", name, _of_class(attack_class(name)))
    if issubclass(own, import_module("fedbary.methods").Method):
        return Part("method", name, text or _of_class(method_kind(name)))
    return Part("task", name, inspect.getdoc(task_kind(name)) or "")


def settings() -> Mapping[str, str]:
    """Return every setting's default and meaning, from simulation.yaml."""
    found: dict[str, str] = {}
    last = ""
    for line in DEFAULTS.read_text(encoding="utf-8").split("\non_features:")[0].splitlines():
        if match := re.match(r"(\w+):\s+(\S+)\s*(?:#\s*(.*))?$", line):
            last = match[1]
            found[last] = f"{last}={match[2]}  {match[3] or ''}".rstrip()
        elif last and (more := re.match(r"\s+#\s*(.*)", line)):
            found[last] += f" {more[1]}"
        else:
            last = ""
    return {name: found[name] for name in Settings.model_fields}


def _parameters(part: Part) -> str:
    """Return a part's own parameters, each with its default and its meaning."""
    own = owned(part.setting, part.name)
    if not own:
        return ""
    return "\n\nParameters:\n" + "\n".join(f"  {_line(parameter)}" for parameter in own.values())


def _schemes() -> Iterator[Part]:
    """Yield the package's own partitions, from the docstring of the function that deals them."""
    said = inspect.getdoc(partition) or ""
    for name, meaning in re.findall(r"``(\w+)``\n((?:    .+\n)+)", said):
        whole = " ".join(meaning.replace("``", "").split())
        yield Part("partition", name, f"{re.split('[:;.]', whole)[0]}.\n\n{whole}")


def _protocols() -> Iterator[Part]:
    """Yield the presets, with the comment before each and its settings."""
    preset = re.compile(r"((?:  #.*\n)*)  (\S+):\n((?:    .+\n)+)")
    _, _, below = DEFAULTS.read_text(encoding="utf-8").partition("\nprotocols:\n")
    for comment, name, lines in preset.findall(below):
        said = re.sub(r"(?m)^\s*# ?", "", comment).strip()
        purpose, mark, rest = re.split(r"([.]|$)", " ".join(said.split()), maxsplit=1)
        yield Part("protocol", name, f"{purpose}{mark}\n{rest.strip()}\n\n{lines}".rstrip())


def _line(parameter: Parameter) -> str:
    default = NONE if parameter.default is None else parameter.default
    return f"{parameter.name}={default}  {parameter.meaning} ({parameter.allowed})"


def _of_class(part: type) -> str:
    """Return a class's docstring without its parameters."""
    return (inspect.getdoc(part) or "").partition("\n\nParameters\n")[0]


def _docstring(room: str, module: str) -> str:
    return inspect.getdoc(import_module(f"fedbary.{room.replace('/', '.')}.{module}")) or ""
