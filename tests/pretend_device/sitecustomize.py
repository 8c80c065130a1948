"""Let this repository take the pretend device for its GPU, with PRETEND set.

A module's source is changed as it is imported, never on disk: "cuda" becomes "pretend". The folder
is on PYTHONPATH, so every process has the device, a Ray worker's too.
"""

import os
import re
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHANGES = {r"torch\.cuda\b": "torch.pretend", r'"cuda"': '"pretend"'}
CHANGES |= {r"\bis_cuda\b": "is_pretend", r"\.cuda\(\)": ".pretend()"}
CHANGES |= {r"(?<!\S)import torch\n": "import torch; import pretend\n"}


class Loader(SourceFileLoader):
    """Compiles the changed source."""

    def get_code(self, fullname):
        source = self.get_data(self.path).decode()
        for pattern, by in CHANGES.items():
            source = re.sub(pattern, by, source)
        return compile(source, self.path, "exec", dont_inherit=True)


class Finder:
    """Finds modules of the repository, but for those of the device itself."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        if spec and type(spec.loader) is SourceFileLoader:
            around = Path(spec.origin).parents
            if HERE.parents[1] in around and HERE not in around:
                spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


if os.environ.get("PRETEND"):
    sys.meta_path.insert(0, Finder)
