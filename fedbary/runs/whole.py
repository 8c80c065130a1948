"""Files that hold either their old or their new content, whatever happens during writing.

Tensors are written with a digest of their names, types, shapes and bytes. Every read checks it. A
file in a folder of the owner alone is the owner's alone too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedbary.data.forms import require_regular
from fedbary.errors import naming

_DIGEST, _MARKS = "sha256", "marks"
"""Entries of a file's metadata: its digest; or with marks, both of them as JSON."""


def private_folder(folder: Path) -> None:
    """Make a folder that its owner alone may read; an OSError if it is another user's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of its owner's; the kernel frees it at the process's end."""
    from filelock import FileLock  # here, as a run's first words take no lock

    private_folder(folder)
    with FileLock(folder / ".lock"):
        yield


def write_whole(file: Path, content: bytes) -> None:
    """Write bytes to a file at once."""
    with _replaced(file) as partial:
        partial.write_bytes(content)


def write_tensors(
    file: Path, tensors: Mapping[str, Tensor], marks: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file at once, from the memory where they lie.

    Parameters
    ----------
    file : Path
        The file.
    tensors : mapping of str to Tensor
        The tensors.
    marks : mapping of str to str, optional
        Words that the digest covers too; `read_tensors` returns them.
    """
    held, marks = {name: tensor.contiguous() for name, tensor in tensors.items()}, marks or {}
    with _replaced(file) as partial:
        mode = partial.stat().st_mode
        try:
            save_file(held, partial, _metadata(_digest(held, marks), marks))
        except SafetensorError as error:
            raise _os_error(error) from error
        partial.chmod(mode)  # safetensors has a mode of its own


def read_tensors(file: Path, marks: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors that `write_tensors` wrote, and the marks of these names.

    A file without any metadata, of an older version, has neither a digest nor marks.

    Raises
    ------
    OSError
        If it cannot be read, or is a pipe or a device.
    ValueError
        If its content is not what was written.
    """
    require_regular(file)
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if not metadata:
        return tensors, {}
    try:
        found = json.loads(metadata[_MARKS]) if _MARKS in metadata else metadata
        said = {name: str(found.get(name, "")) for name in marks}
        is_whole = _digest(tensors, said) == found.get(_DIGEST)
    except (ValueError, AttributeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise ValueError("its content is not what was written")
    return tensors, said


def _metadata(digest: str, marks: Mapping[str, str]) -> dict[str, str]:
    """Return a file's metadata: one entry, as safetensors writes several in any order."""
    said = {**marks, _DIGEST: digest}
    return {_MARKS: json.dumps(said, sort_keys=True)} if marks else said


def _digest(tensors: Mapping[str, Tensor], marks: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps({**marks}).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
        whole = tensor.detach().cpu().contiguous()
        flat = whole.as_strided((whole.numel(),), (1,))  # one number may have any stride
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _os_error(error: SafetensorError) -> Exception:
    """Return the operating system's error that safetensors hides in a text, or the text's own."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else error


@contextmanager
def _replaced(file: Path) -> Iterator[Path]:
    """Give an empty file to write to, which takes the file's place at the end."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        with naming(file):
            partial.unlink(missing_ok=True)
            is_private = not stat.S_IMODE(file.parent.stat().st_mode) & 0o077
            partial.touch(0o600 if is_private else 0o666)
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
