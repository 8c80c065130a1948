"""Let this repository take the pretend device for its GPU, with PRETEND set and this folder on PYTHONPATH.

A module's source is changed as it is imported, never on disk: "cuda" becomes "pretend". So every
process, a Ray worker's too, has the device.
"""

import os
import re
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
CHANGES = {
    r"torch\.cuda\b": "torch.pretend",
    r'"cuda"': '"pretend"',
    r"\bis_cuda\b": "is_pretend",
    r"\.cuda\(\)": ".pretend()",
}


def changed(source):
    """A module's source with the pretend device for CUDA."""
    for pattern, by in CHANGES.items():
        source = re.sub(pattern, by, source)
    return source.replace("import torch\n", "import torch; import pretend\n", 1)


class Loader(SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_data(self.path).decode()
        return compile(changed(source), self.path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        if spec and type(spec.loader) is SourceFileLoader and spec.origin.startswith(ROOT):
            if Path(spec.origin).parent != Path(__file__).parent:
                spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


if os.environ.get("PRETEND"):
    sys.meta_path.insert(0, Finder)
