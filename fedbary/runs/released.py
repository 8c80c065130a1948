"""What a site has released of its examples with noise: the same question has the same answer.

A Gaussian mechanism of multiplier σ tells as much of an example as one observation of N(μ, σ²). So
several of them, of multipliers σ_i, tell as much as one with

    1/σ² = Σ 1/σ_i²,

also if later questions depend on earlier answers. An example's ε over all runs is that of this σ,
summed over the releases which it was part of.

Reference: Dong, Roth and Su, Gaussian Differential Privacy, JRSS B 2022, corollary 3.3.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.data.mechanism import Release, epsilon_of
from fedbary.errors import SettingError
from fedbary.runs.whole import locked, private_folder, read_tensors, write_tensors

log = logging.getLogger("flwr.fedbary")

RELEASED = "released"
"""The folder in a site's state folder."""

_SENT, _EXAMPLES, _PRECISION = "sent/", "examples", "precision"


class Releases(ABC):
    """A site's releases. Each has what was sent, hashes of its examples, and 1/σ²."""

    @abstractmethod
    def held(self) -> dict[str, Mapping[str, Tensor]]:
        """Return all releases, by their questions."""

    @abstractmethod
    def add(self, question: str, release: Mapping[str, Tensor]) -> None:
        """Keep a release, before anything of it is sent."""

    def alone(self) -> AbstractContextManager[None]:
        """Let no other process release meanwhile."""
        return nullcontext()

    def once(self, release: Release) -> dict[str, Tensor]:
        """Return the numbers of a release: those that were sent before, if the question was.

        The log says the examples' largest ε over all releases.
        """
        count = len(release.examples)
        with self.alone():
            held = self.held()
            if is_new := release.question not in held:
                held[release.question] = {
                    **{_SENT + name: tensor for name, tensor in release.draw().items()},
                    _EXAMPLES: release.examples,
                    _PRECISION: torch.tensor(release.multiplier**-2, dtype=torch.float64),
                }
                self.add(release.question, held[release.question])
        spent = self.spent(release.examples, release.delta)
        what = f"with epsilon={release.epsilon:g}, delta={release.delta:g}"
        over = f"Over all runs an example has epsilon={spent:.3g} at most"
        if is_new:
            log.info("Sums of %d examples are released %s. %s", count, what, over)
        else:
            log.info("Sums of these %d examples were released before %s: the same noisy sums are "
                     "sent again, which tells nothing more. %s", count, what, over)  # fmt: skip
        return select_prefix(_SENT, held[release.question])

    def spent(self, examples: Tensor, delta: float) -> float:
        """Return the largest ε that one of some examples has over all releases, for a δ."""
        precision = torch.zeros(len(examples), dtype=torch.float64)
        for release in self.held().values():
            precision += torch.isin(examples, release[_EXAMPLES]) * release[_PRECISION]
        most = float(precision.max()) if len(examples) else 0.0
        return epsilon_of(delta, 1 / math.sqrt(most)) if most else 0.0


class ReleasedFiles(Releases):
    """Releases in a folder of the owner's alone, a file each.

    Parameters
    ----------
    folder : Path
        The site's state folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / RELEASED

    def held(self) -> dict[str, Mapping[str, Tensor]]:
        """Return all releases; a SettingError if one is damaged."""
        found: dict[str, Mapping[str, Tensor]] = {}
        for file in sorted(self.folder.glob("*.safetensors")):
            try:
                found[file.stem], _ = read_tensors(file)
            except (OSError, ValueError) as error:
                allowed = "the file as the site wrote it; without it the site would tell more"
                raise SettingError(str(file), error, allowed) from None
        return found

    def add(self, question: str, release: Mapping[str, Tensor]) -> None:
        """Keep a release."""
        write_tensors(self.folder / f"{question}.safetensors", release)

    def alone(self) -> AbstractContextManager[None]:
        """Hold the folder's lock."""
        return locked(self.folder)


def take_released(folder: Path, earlier: Path) -> None:
    """Copy to a site's state folder what it has released in an earlier run's."""
    files = [*(earlier / RELEASED).glob("*.safetensors")]
    if files:
        private_folder(folder / RELEASED)
    for file in files:
        if not (folder / RELEASED / file.name).exists():
            partial = folder / RELEASED / f"{file.name}.{os.getpid()}"
            shutil.copyfile(file, partial)
            partial.chmod(0o600)
            partial.rename(folder / RELEASED / file.name)
