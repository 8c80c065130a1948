"""Files that hold either their old or their new content, whatever happens during writing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def write_whole(file: Path, content: bytes) -> None:
    """Write bytes to a file at once."""
    with _replaced(file) as partial:
        partial.write_bytes(content)


def write_tensors(
    file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file at once, from the memory where they lie."""
    held = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with _replaced(file) as partial:
        partial.touch()
        mode = partial.stat().st_mode
        try:
            save_file(held, partial, {**metadata} if metadata else None)
        except SafetensorError as error:
            raise _os_error(error) from error
        partial.chmod(mode)  # safetensors lets the owner alone read what it writes


def _os_error(error: SafetensorError) -> Exception:
    """Return the operating system's error that safetensors hides in a text, or the text's own."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else error


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Name a file in the operating system's errors: those of a full disk name none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(file)) from error


@contextmanager
def _replaced(file: Path) -> Iterator[Path]:
    """Give a path to write to, which takes the file's place at the end."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        with naming(file):
            yield partial
            _sync(partial)
            os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    _sync(file.parent)


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
