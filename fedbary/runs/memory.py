"""A client's memory between rounds: named tensors by round, in a folder of its own.

A client does not know whether its reply was admitted. So it keeps the tensors of several rounds.
The server's next message names the round to go on from: the last one whose reply was admitted. So
both sides agree after a refused or lost reply, a restart of the site, or a resume of the server
from an earlier checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from fedbary.errors import SettingError
from fedbary.runs.whole import private_folder, read_tensors, write_tensors


class Memory:
    """A client's tensors by round; files are written whole or not, and never pickled.

    Parameters
    ----------
    folder : Path
        Folder of the files, made with the first; its owner alone may read it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def recall(self, admitted: int) -> dict[str, Tensor]:
        """Return the tensors of a round; nothing for round 0, before the first reply.

        Raises
        ------
        SettingError
            If they are missing, as after the loss of the folder, or cannot be read.
        """
        if admitted == 0:
            return {}
        file = self._file(admitted)
        try:
            return read_tensors(file)[0]
        except (OSError, ValueError) as error:
            allowed = f"this client's tensors of round {admitted}, the last that counted"
            raise SettingError(str(file), error, allowed) from None

    def keep(
        self, server_round: int, tensors: Mapping[str, Tensor], needed: Collection[int] | None
    ) -> None:
        """Keep the tensors of a round, and drop those that no server can ask for any more.

        Parameters
        ----------
        server_round : int
            Their round.
        tensors : mapping of str to Tensor
            Tensors to keep.
        needed : collection of int, optional
            Earlier rounds that a server may still go back to; others are dropped. None: unknown,
            and none is dropped.
        """
        private_folder(self.folder)
        write_tensors(self._file(server_round), tensors)
        for number in self._rounds() - {server_round, *needed} if needed is not None else ():
            self._file(number).unlink(missing_ok=True)

    def _file(self, server_round: int) -> Path:
        return self.folder / f"kept-{server_round:06d}.safetensors"

    def _rounds(self) -> set[int]:
        names = (re.fullmatch(r"kept-(\d+)\.safetensors", p.name) for p in self.folder.iterdir())
        return {int(match[1]) for match in names if match}
