"""What a client keeps between rounds: named tensors by round, in a folder of its own.

A client cannot know whether its reply was admitted. So it keeps what it made of each round beside
what it had, and the server says with the next message which round's holds: the last whose reply
was admitted. A refused or lost reply, a restart of the site and a resume of the server from an
earlier checkpoint thus leave both sides with the same past.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedbary.data.paths import content_of
from fedbary.errors import SettingError
from fedbary.runs.whole import write_tensors


class Memory:
    """A client's tensors by round; files are written whole or not, and never pickled.

    Parameters
    ----------
    folder : Path
        Where the files lie; it is made with the first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def recall(self, admitted: int) -> dict[str, Tensor]:
        """Return what was kept in a round; of round 0, before the first reply, nothing.

        Raises
        ------
        SettingError
            If it is not there, as after the loss of the folder, or cannot be read.
        """
        if admitted == 0:
            return {}
        file = self._file(admitted)
        try:
            return load(content_of(file))
        except (OSError, SafetensorError) as error:
            allowed = f"what this client kept in round {admitted}, the last that counted"
            raise SettingError(str(file), error, allowed) from None

    def keep(
        self, server_round: int, tensors: Mapping[str, Tensor], needed: Collection[int] | None
    ) -> None:
        """Keep the tensors of a round, and drop what no server can ask for any more.

        Parameters
        ----------
        server_round : int
            The round that they are of.
        tensors : mapping of str to Tensor
            What is kept.
        needed : collection of int, optional
            The earlier rounds that a server may still go back to; others are dropped. None: it does
            not know, and none is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write_tensors(self._file(server_round), tensors)
        for number in self._rounds() - {server_round, *needed} if needed is not None else ():
            self._file(number).unlink(missing_ok=True)

    def _file(self, server_round: int) -> Path:
        return self.folder / f"kept-{server_round:06d}.safetensors"

    def _rounds(self) -> set[int]:
        names = (re.fullmatch(r"kept-(\d+)\.safetensors", p.name) for p in self.folder.iterdir())
        return {int(match[1]) for match in names if match}
