"""Where the `fedbary` command begins: it says in a line which packages it lacks."""

import sys


def main() -> None:
    """Run the command line, if what it needs is installed."""
    try:
        from fedbary.launching.cli import main as run
    except ModuleNotFoundError as error:
        needs = f"fedbary: the command needs {error.name}, which fedbary[simulation] brings"
        sys.exit(f"{needs}: pip install 'fedbary[simulation]'")
    run()
