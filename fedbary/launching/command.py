"""Where the `fedbary` command begins: it says in a line which packages it lacks."""

import sys

from fedbary.ending import spare_imports


def main() -> None:
    """Run the command line, if what it needs is installed."""
    try:
        from fedbary.launching.cli import main as run

        run()
    except ModuleNotFoundError as error:
        lacks = f"fedbary: {error.name} is not installed; what the command needs comes by"
        sys.exit(f"{lacks} pip install 'fedbary[simulation]'")
    finally:
        spare_imports()
