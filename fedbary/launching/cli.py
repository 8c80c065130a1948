"""The `fedbary` command: simulate one run, sweep a grid of runs, report on it."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedbary import __version__
from fedbary.errors import RunError, SettingError, Stopped
from fedbary.launching.grids import central, compare, report, sweep
from fedbary.launching.launch import launch, prepare
from fedbary.launching.use import clusters, evaluate, export, predict
from fedbary.runs.location import SETTINGS, read_settings, run_folder
from fedbary.settings.config import DEFAULTS, Settings, parse_overrides, resolve, validated
from fedbary.settings.uses import require_used

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(add_completion=False, no_args_is_help=True)


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

    SETTINGS.yaml is a file of settings, simulation.yaml if none is named; KEY=VALUE sets one of
    them and goes over the file.

    Examples: `fedbary simulate`; `fedbary simulate rule=WB rounds=3`;
    `fedbary simulate mine.yaml dataset=fashionmnist protocol=short`. The settings and their
    defaults stand in simulation.yaml. The results' folder is printed at the end.
    """
    settings = _settings(arguments)
    _simulate(settings, run_folder(settings, Path.cwd()))


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    previous: Annotated[
        bool, typer.Option("--previous", help="From the checkpoint before the last.")
    ] = False,
) -> None:
    """Go on with a simulated run that was cut off, from its last whole round.

    RUN is the run's folder.

    The final model is that of a run without the interruption, bit for bit on a CPU.
    """
    made = {**read_settings(run), "resume": "previous" if previous else "last"}
    _simulate(validated(made), run.resolve())


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
    """Run a federation of real servers on this machine, with TLS and keys that it generates.

    SETTINGS.yaml is a file of settings, simulation.yaml if none is named; KEY=VALUE sets one of
    them and goes over the file.

    Examples: `fedbary deploy clients=3 rounds=3` deals the data set to three SuperNodes;
    `fedbary deploy --site a.npz --site b.npz dataset=none classes=10 input_shape=1x28x28` gives
    each its own data and the server none. All that is started is stopped at the end, also on
    Ctrl-C.
    """
    sites = list(site or [])
    settings = _settings([*(arguments or []), *([f"clients={len(sites)}"] if sites else [])])
    if settings.dataset == "none" and not sites:
        raise SettingError("dataset", "none", "a data set, or --site with each site's data")
    from fedbary.launching.deploy import deploy as run_lab

    folder = run_folder(settings, Path.cwd())
    try:
        prepared = prepare(settings, folder, own_data=bool(sites))
        run_lab(prepared, sites)
    except Stopped:
        words = shlex.join([f"output={folder}", "resume=last"])
        raise Stopped(f"the same command with {words} goes on") from None
    print(f"Results: {prepared.output}")


@app.command()
def explain(
    part: Annotated[str | None, typer.Argument(metavar="[PART]")] = None,
) -> None:
    """Say what the parts of a run are: methods, rules, local inference, data sets, models.

    PART is the name of one, or of a setting; without it all are listed. Examples: `fedbary
    explain`; `fedbary explain PVI`; `fedbary explain kl_weight`.
    """
    from fedbary.settings.explain import explained, overview

    print(overview() if part is None else explained(part))


app.command()(sweep)
app.command()(central)
app.command()(report)
app.command()(compare)
app.command()(predict)
app.command()(evaluate)
app.command()(export)
app.command()(clusters)


def _simulate(settings: Settings, folder: Path) -> None:
    if settings.dataset == "none":
        raise SettingError("dataset", "none", "a data set; without one, deploy with --site")
    try:
        prepared = prepare(settings, folder)
        launch(prepared)
    except Stopped:
        if not (folder / SETTINGS).exists():
            raise
        command = shlex.join(["fedbary", "resume", str(folder)])
        raise Stopped(f"{command} goes on from the last whole round") from None
    print(f"Results: {prepared.output}")


def _settings(arguments: list[str] | None) -> Settings:
    words = list(arguments or [])
    file = Path(words.pop(0)) if words and "=" not in words[0] else DEFAULTS
    overrides = parse_overrides(words)
    settings = resolve(overrides, file)
    require_used(overrides, settings)
    return settings


def main() -> None:
    """Run the command line; what goes wrong ends it with one line, a bad setting with code 2."""
    for number in STOPPING:
        signal.signal(number, _stop_once)
    try:
        refuse_settings_with_dashes(sys.argv[1:])
        app()
    except (SettingError, RunError) as error:
        sys.exit(_say(str(error), 2 if isinstance(error, SettingError) else 1))
    except OSError as error:
        sys.exit(_say(" ".join(str(error).split()), 1))
    except Stopped as stopped:
        sys.exit(_say("; ".join(["stopped", *stopped.args]), 130))


def _stop_once(number: int, frame: object) -> None:
    """End the command, and let it stop in peace what it has started.

    Further signals are taken by a handler, not ignored: what is started now would inherit that.
    """
    for other in STOPPING:
        signal.signal(other, lambda number, frame: None)
    raise Stopped


def refuse_settings_with_dashes(words: list[str]) -> None:
    """Raise a SettingError for `--rounds 3`, which says that rounds=3 was meant."""
    if not {"simulate", "deploy", "sweep", "central"} & set(words[:1]):
        return
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, separator, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if word.startswith("--") and name in Settings.model_fields:
            given = value if separator or following.startswith("-") else following
            raise SettingError("argument", word, f"{name}={given or '…'}, without dashes")


def _say(text: str, code: int) -> int:
    print(f"fedbary: {text}", file=sys.stderr)
    return code
