"""Classes and what they inherit from, read from a package's files; these are not imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedbary.syntax import tree


@dataclass(frozen=True)
class Source:
    """A class in a file.

    Parameters
    ----------
    file : Path
        The module.
    definition : ast.ClassDef
        The class in it.
    """

    file: Path
    definition: ast.ClassDef

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.name

    def lineage(self) -> list[Source]:
        """Return the class after all that it inherits from, as far as these lie in its folder."""
        bases = [ast.unparse(base).split(".") for base in self.definition.bases]
        found = [_find(self.file, words) for words in reversed(bases)]
        return [*(source for base in found if base for source in base.lineage()), self]


def classes(file: Path) -> list[Source]:
    """Return the classes at the top of a file, in order."""
    return [Source(file, node) for node in tree(file).body if isinstance(node, ast.ClassDef)]


def _find(file: Path, words: list[str]) -> Source | None:
    """Return the class that a file calls by these words; None for one from another folder."""
    first, *rest = words
    if not file.exists():
        return None
    for source in classes(file):
        if words == [source.name]:
            return source
    for origin, here, there in _imports(file):
        if here == first:
            is_module = rest and origin.stem == "__init__"
            return _find(origin.with_stem(there), rest) if is_module else _find(origin, [there])
    return None


def _imports(file: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the file, the name here and the name there of what a file imports from its folder."""
    package = ".".join(file.parent.parts[-2:])
    for node in tree(file).body:
        if isinstance(node, ast.ImportFrom):
            module = f"{package}.{node.module or ''}" if node.level == 1 else str(node.module)
            if module.rstrip(".") == package or module.startswith(f"{package}."):
                stem = module.removeprefix(package).strip(".") or "__init__"
                for alias in node.names:
                    yield file.parent / f"{stem}.py", alias.asname or alias.name, alias.name
