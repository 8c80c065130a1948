"""The keys that `flwr run --run-config` may set: a block of pyproject.toml.

`PYTHONPATH=. python tests/run_config_keys.py` writes the block anew.
"""

import re
from pathlib import Path

from fedbary.settings.model import Settings
from fedbary.settings.owners import owners

FILE = Path(__file__).resolve().parents[1] / "pyproject.toml"

HEAD = """\
# Flower lets `--run-config` set only the keys listed here, a setting each. "" means: as
# simulation.yaml says.
# `settings` holds words as `fedbary simulate` takes them, for those of flwr-datasets' partitioners.
# The block is generated: `PYTHONPATH=. python tests/run_config_keys.py`.
[tool.flwr.app.config]
"""

BLOCK = re.compile(r"(?:^#.*\n)+^\[tool\.flwr\.app\.config\]\n(?:\w.*\n|#.*\n)*", re.M)


def text():
    """Return the block."""
    own = {name for parts in owners().values() for each in parts.values() for name in each}
    of_parts = sorted(own - Settings.model_fields.keys())
    lines = [f'{name} = ""' for name in ("settings", *Settings.model_fields)]
    return HEAD + "\n".join([*lines, "# of parts", *(f'{name} = ""' for name in of_parts)]) + "\n"


if __name__ == "__main__":
    written, count = BLOCK.subn(lambda _: text(), FILE.read_text(encoding="utf-8"))
    assert count == 1
    FILE.write_text(written, encoding="utf-8")
