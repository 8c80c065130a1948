"""The `fedbary` command, of which simulations are short, and have one round at most."""

import re
import sys
import tempfile
from pathlib import Path

import yaml

from fedbary.commands import cli

SHORT = {
    "engine": "inline",
    "pictures": False,
    "clients": 5,
    "rounds": 1,
    "local_epochs": 1,
    "samples": 2,
    "device": "cpu",
}
SHORTER = {"model=own:": "train_fraction=0.1", "protocol=": "local_epochs=2"}
"""What is added to commands with certain words: a ResNet is slow, protocols train for long."""


def main() -> None:
    """Run the command line, the short settings under those of a file of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as settings:
        if sys.argv[1:2] == ["simulate"]:
            own = sys.argv.pop(2) if sys.argv[2:] and "=" not in sys.argv[2] else None
            yaml.safe_dump(SHORT | (yaml.safe_load(Path(own).read_text()) if own else {}), settings)
            settings.flush()
            sys.argv = [re.sub(r"^(rounds|cycle)=\d+$", r"\1=1", word) for word in sys.argv]
            for word, shorter in SHORTER.items():
                sys.argv += [shorter] if any(w.startswith(word) for w in sys.argv) else []
            sys.argv.insert(2, settings.name)
        cli.main()
