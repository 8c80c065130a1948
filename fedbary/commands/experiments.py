"""The commands on grids of runs: sweep, report, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbary.commands.use import Alerts, OwnCode, Sensitivity
from fedbary.errors import RunError, Stopped

GridFile = Annotated[Path, typer.Argument(metavar="EXPERIMENT.yaml")]
GridOverrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE ...]"),
]
ResultsFolder = Annotated[
    Path | None, typer.Option(help="Folder of the results.", show_default="runs/EXPERIMENT")
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE,...", help="Run only runs with these values; repeatable."),
]


def sweep(
    experiment: GridFile,
    arguments: GridOverrides = None,
    results: ResultsFolder = None,
    only: Only = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of runs at a time.", show_default="CPU cores; with engine=ray 1"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and estimate their time.")
    ] = False,
) -> None:
    """Run a grid of simulations; runs that are done are skipped.

    EXPERIMENT.yaml is the grid's file; KEY=VALUE sets a setting of every run.

    Examples: `fedbary sweep findings/smoke/grid.yaml --dry-run`; `fedbary sweep
    findings/protocol/short/grid.yaml --only dataset=cifar10 --only bayesian_layers=0,3 --jobs 2`.

    Each run has a folder under RESULTS/runs and a log under RESULTS/logs. RESULTS/results.csv has a
    row a run with its settings and scores. RESULTS/rounds.csv.xz has a row a round; it belongs to
    RESULTS/runs.csv and RESULTS/common.csv.
    You may stop the sweep at any time; the same command continues it.
    """
    from rich.console import Console

    from fedbary.settings.config import parse_overrides
    from fedbary.study.grid import read_experiment

    grid = read_experiment(experiment, parse_overrides(arguments or []), _kept(only))
    from fedbary.launching import sweep as runner
    from fedbary.study.table import RUNS

    folder = results or _folder(experiment)
    held = runner.SweepFolder.open(folder, grid)
    at_once = jobs or runner.default_jobs(grid)
    console = Console(highlight=False, soft_wrap=True)
    if dry_run:
        runner.plan(grid, held, at_once, console)
        return
    try:
        failed = runner.sweep(grid, held, at_once, console)
    except Stopped:
        raise Stopped("repeat the command to continue") from None
    for name, reason in failed.items():
        console.print(f"failed: {name}: {reason}", markup=False)
    if runner.is_table(folder):
        print(f"Results: {folder / RUNS}")
    if failed:
        raise RunError(f"{len(failed)} of {len(grid.runs)} runs failed; sweep again to retry them")


def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS")],
    sensitivity: Sensitivity = 0.9,
    alerts: Alerts = 0.05,
    own_code: OwnCode = False,
) -> None:
    """Report the results of a sweep or a run on one page.

    RESULTS is the folder of a sweep, or of a run that has ended.

    The page is RESULTS/report.html, with its pictures inside; RESULTS/report.md and RESULTS/figures
    are the same. A sweep's needs only the table. A run's reads the test rows again and has scores
    with intervals, calibration, thresholds, groups and sites.

    Example: `fedbary report runs/RUN --sensitivity 0.95 --alerts 0.1`.
    """
    from fedbary.report.judged import Goals
    from fedbary.report.report import write_report

    print(f"Report: {write_report(results, own_code, Goals(sensitivity, alerts))}")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...")],
    output: Annotated[Path, typer.Option(help="Folder to write.")] = Path("comparison"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace the folder if it exists.")
    ] = False,
    own_code: OwnCode = False,
) -> None:
    """Compare runs: settings, scores, learning curves.

    RUN is the folder of a run that has ended. The table lists the settings that differ. Runs that
    differ only in their seeds are repeats. Two sets of runs that share two seeds or more are tested
    in pairs, if data, split and budget are the same. The folder gets comparison.html,
    comparison.md and figures.

    Example: `fedbary compare runs/A runs/B runs/C`.
    """
    from fedbary.figures.document import Document
    from fedbary.report import compared
    from fedbary.runs.own_code import require_trusted
    from fedbary.trained import writing

    table = compared.with_arms(compared.read_runs(runs))
    require_trusted({"task": table["task"].iloc[0]}, runs[0], own_code)
    with writing.written_whole(output, force) as folder:
        page = Document(folder, "Comparison", "comparison")
        compared.write(table, page)
        page.write()
    print("\n\n".join(page.section("")))
    print(f"Comparison: {output}")


def _folder(grid: Path) -> Path:
    """Return where a grid's results go: in `runs`, a folder named as the file, or as its folder."""
    return Path("runs") / (grid.resolve().parent.name if grid.stem == "grid" else grid.stem)


def _kept(only: list[str] | None) -> dict[str, list[str]]:
    """Return the values of settings that `--only` keeps."""
    from fedbary.settings.config import parse_overrides

    kept: dict[str, list[str]] = {}
    for word in only or []:
        for key, value in parse_overrides([word]).items():
            kept.setdefault(key, []).extend(value.split(","))
    return kept
