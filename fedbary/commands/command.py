"""The entry of the `fedbary` command: it names missing packages in a line."""

import codecs
import os
import sys

from fedbary.figures import draw_without_screen
from fedbary.runs.ending import spare_imports


def main() -> None:
    """Run the command line, if its packages are installed."""
    _leave_ascii()
    draw_without_screen()
    try:
        from fedbary.commands.cli import main as run

        run()
    except ModuleNotFoundError as error:
        lacks = f"fedbary: {error.name} is not installed; what the command needs comes by"
        sys.exit(f"{lacks} pip install 'fedbary[simulation]'")
    finally:
        spare_imports()


def _leave_ascii() -> None:
    """Restart in UTF-8 if the locale allows only ASCII names of files.

    UTF-8 has the same names, and more; settings and tables are written in it in any locale.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name == "ascii":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
