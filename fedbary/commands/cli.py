"""The `fedbary` command: simulate one run, sweep a grid of runs, report on it.

A command imports its modules when it is called, so that the help is there at once.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from fedbary import __version__
from fedbary.commands.experiments import compare, report, sweep
from fedbary.commands.use import OwnCode, audit, coefficients, evaluate, export, forget, predict
from fedbary.errors import SettingError, Stopped, last_words
from fedbary.texts import SCREEN, one_line

TAKE_SETTINGS = ("simulate", "resume", "deploy", "look", "sweep")

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Commands(TyperGroup):
    """The commands, listed in plain text: drawing boxes takes longer than all else."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        click.Group.format_help(self, ctx, formatter)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedbary {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Bayesian federated learning with Flower."""


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SETTINGS.yaml] [KEY=VALUE ...]"),
]


@app.command()
def simulate(
    arguments: Overrides = None,
) -> None:
    """Run a simulated federation on this machine.

    SETTINGS.yaml is a file of settings; the default is simulation.yaml. KEY=VALUE sets one of them
    and overrides the file.

    Examples: `fedbary simulate`; `fedbary simulate rule=WB rounds=3`; `fedbary simulate mine.yaml
    dataset=fashionmnist protocol=short`. The file simulation.yaml lists the settings and their
    defaults. The last line names the results' folder.
    """
    from fedbary.commands import start

    start.simulate(list(arguments or []))


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE ...]")] = None,
    previous: Annotated[
        bool, typer.Option("--previous", help="Continue from the checkpoint before the last.")
    ] = False,
    after: Annotated[
        int | None,
        typer.Option("--round", min=0, help="Continue from the checkpoint after this round."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE", help="Continue without this site; repeatable."),
    ] = None,
    own_code: OwnCode = False,
) -> None:
    """Continue a simulated run that was interrupted.

    RUN is the run's folder. The run continues after its last whole round. KEY=VALUE sets a setting
    that may change. With `rounds=40`, more than before, a run that has ended continues, too. The
    others are max_skipped and the server's defences: clipping, mixing, trim_fraction,
    max_precision_ratio and max_weight_ratio. Examples: `fedbary resume runs/RUN rounds=40`;
    `fedbary resume runs/RUN --round 2 clipping=true`.

    Without changes the final model is that of a run without the interruption, bit for bit on a CPU.
    """
    from fedbary.commands import start

    last = "previous" if previous else "last"
    checkpoint = last if after is None else after
    start.resume(run, checkpoint, list(arguments or []), own_code, list(without or []))


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    output: Annotated[
        Path | None, typer.Option(help="The folder to write.", show_default="RUN-replay")
    ] = None,
    own_code: OwnCode = False,
) -> None:
    """Make a run without rounds again, in the order in which its replies arrived.

    RUN is the folder of a run with mode=async that has ended, simulated or on real servers that
    hold the parts of a data set. The replay runs in one process. Its model is that of RUN, bit for
    bit on a CPU. Example: `fedbary replay runs/RUN`.
    """
    from fedbary.commands import start

    start.replay(run, output or run.with_name(f"{run.resolve().name}-replay"), own_code)


@app.command()
def deploy(
    arguments: Overrides = None,
    site: Annotated[
        list[Path] | None,
        typer.Option(
            help="A site's own .npz file, image folder, .csv or .parquet table; repeatable.",
            metavar="PATH",
        ),
    ] = None,
) -> None:
    """Run a federation of real servers on this machine.

    The servers talk by TLS. The command generates their keys.

    SETTINGS.yaml is a file of settings; the default is simulation.yaml. KEY=VALUE sets one of them
    and overrides the file.

    Examples: `fedbary deploy clients=3 rounds=3` deals the data set to three SuperNodes; `fedbary
    deploy --site a.npz --site b.npz dataset=none classes=10 input_shape=1x28x28` gives each its own
    data and the server none. The command stops all servers at the end, also on Ctrl-C.
    """
    from fedbary.commands import start

    start.deploy(list(arguments or []), list(site or []))


@app.command()
def look(
    arguments: Overrides = None,
    site: Annotated[
        list[Path] | None,
        typer.Option(help="A site's own table; repeatable.", metavar="PATH"),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder to write.")] = Path("look"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace the files of an earlier look.")
    ] = False,
) -> None:
    """Look at the sites' tables before any model.

    The command prints what it finds: sites in other units, numbers that stand for a missing value,
    constant columns, columns that others determine, levels that a site lacks, sites with the same
    rows. A table has rows, missing cells, mean and standard deviation of each column at each site,
    and quantiles of all together. The folder gets look.html, look.md and look.csv.

    The sites send sums, histograms and names of levels. No number stands for fewer than five rows,
    and none is a minimum or a maximum.

    SETTINGS.yaml is a file of settings; the default is simulation.yaml. KEY=VALUE sets one of them
    and overrides the file.

    Examples: `fedbary look --site north.csv --site south.csv id=patient`; `fedbary look
    dataset=patients.csv target=outcome clients=3` deals one table to three sites.
    """
    from fedbary.commands import start

    start.look(list(arguments or []), list(site or []), output, force)


@app.command("app")
def write(
    folder: Annotated[Path, typer.Argument(metavar="DEST", show_default=False)],
    looks: Annotated[
        bool, typer.Option("--look", help="Write the app that looks at the sites' tables.")
    ] = False,
) -> None:
    """Write a Flower app that can be run anywhere, or published.

    DEST is a new or empty folder. It gets the code, a pyproject.toml with all settings as keys of
    Flower's run config, and a README.md. Example: `fedbary app my-app`, then `flwr run my-app
    --stream`.
    """
    from fedbary.launching.app import LOOKS, RUNS, write_app

    print(f"Flower app: {write_app(folder, LOOKS if looks else RUNS).resolve()}")


@app.command()
def explain(
    part: Annotated[str | None, typer.Argument(metavar="[PART]")] = None,
) -> None:
    """Explain a part of a run or a setting.

    PART is the name of a method, a rule, a local inference, a data set, a model, a protocol or a
    setting. Without PART the command lists all. Examples: `fedbary explain`; `fedbary explain PVI`;
    `fedbary explain kl_weight`.
    """
    from fedbary.settings.explain import explained, overview

    print(overview() if part is None else explained(part))


app.command()(sweep)
app.command()(report)
app.command()(compare)
app.command()(predict)
app.command()(evaluate)
app.command()(coefficients)
app.command()(export)
app.command()(forget)
app.command()(audit)


def main() -> None:
    """Run the command line; an error ends it with one line, a bad setting with code 2."""
    for number in STOPPING:
        if not _goes_on_without_terminal(number):
            signal.signal(number, _stop_once)
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="fedbary", standalone_mode=False))
    except click.UsageError as error:
        if (words := without_dashes(error, sys.argv[1:])) is not None:
            sys.exit(_say(words, 2))
        help_of = error.ctx.command_path if error.ctx else "fedbary"
        sentences = re.split(r"(?<=[.?])\s+", error.format_message())
        said = " ".join(dict.fromkeys(sentences))  # click and typer both say what may be meant
        sys.exit(_say(f"{said} See {help_of} --help", 2))
    except Stopped as stopped:
        sys.exit(_say("; ".join(["stopped", *stopped.args]), 130))
    except Exception as error:
        if (words := last_words(error)) is None:
            raise
        sys.exit(_say(words, 2 if isinstance(error, SettingError) else 1))


def _goes_on_without_terminal(number: int) -> bool:
    """Return whether this is the signal of a closed terminal that `nohup` has had ignored."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _stop_once(number: int, frame: object) -> None:
    """End the command, and let it stop in peace all that it has started.

    Further signals are taken by a handler, not ignored: what is started now would inherit that.
    """
    for other in STOPPING:
        if not _goes_on_without_terminal(other):
            signal.signal(other, lambda number, frame: None)
    raise Stopped


def without_dashes(error: click.UsageError, words: list[str]) -> str | None:
    """Return what an option that is none says of `--rounds 3`: that rounds=3 was meant.

    None for a command that takes no settings, and for a misspelt option.
    """
    if not isinstance(error, click.NoSuchOption) or words[0] not in TAKE_SETTINGS:
        return None
    from fedbary.settings.config import Settings

    name = error.option_name.lstrip("-").replace("-", "_")
    if error.possibilities and name not in Settings.model_fields:
        return None
    whole = next(word for word in words if word.partition("=")[0] == error.option_name)
    following = [*words, ""][words.index(whole) + 1]
    value = whole.partition("=")[2] or ("" if following.startswith("-") else following)
    return str(SettingError("argument", whole, f"{name}={value or '…'}, without dashes"))


def _say(text: str, code: int) -> int:
    print(f"fedbary: {one_line(text, SCREEN)}", file=sys.stderr)
    return code
