"""The `fedbary` command within limits of its process: LIMITS WORD…"""

import json
import resource
import sys

import pyarrow.parquet  # noqa: F401

import fedbary.figures.run_pictures
import fedbary.trained.judgement  # noqa: F401
from fedbary.commands import cli


def main() -> None:
    """Run the command; memory is limited beside what the imports hold."""
    sys.dont_write_bytecode = True  # a limit of files' sizes would cut them short
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    for name, most in json.loads(sys.argv.pop(1)).items():
        most += held if name == "RLIMIT_AS" else 0
        resource.setrlimit(getattr(resource, name), (most, most))
    cli.main()
