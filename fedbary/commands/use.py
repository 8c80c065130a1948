"""The commands that use a run that has ended."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbary.errors import SettingError
from fedbary.figures.spared import spared
from fedbary.texts import SCREEN, one_line, shown

if TYPE_CHECKING:
    import numpy as np

    from fedbary.data.examples import Examples
    from fedbary.trained import Trained


def tell(line: str) -> None:
    """Print a line beside the command's output."""
    print(one_line(line, SCREEN), file=sys.stderr)


@contextmanager
def warnings_told() -> Iterator[None]:
    """Print a block's warnings beside the command's output, a line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        tell(str(warning.message))


def warn_if_untrained(trained: Trained) -> Trained:
    """Return a trained model; warn if it has learned nothing."""
    from fedbary.runs.failing import verdict

    if said := verdict(trained.line):
        print(said, file=sys.stderr)
    return trained


def read(trained: Trained, data: Path, target: str, by: str | None = None) -> Examples:
    """Read examples; name unused columns, and count converted pictures."""
    examples = trained.read(data, target)
    if target and examples.y is None:
        raise SettingError("--target", target, f"the column of {data} to predict")
    if unused := [name for name in examples.unused if name != by]:
        tell(f"{data}: unused columns: {', '.join(unused)}")
    if examples.notes:
        tell(f"{data}: {'; '.join(examples.notes)}")
    if examples.unknown:
        first = examples.names[examples.unknown[0]]
        said = f"{len(examples.unknown)} of {len(examples.names)} rows (first: {first}) hold "
        tell(f"{data}: {said}{examples.lacking}, and go to a person")
    if examples.converted:
        form = "grey" if examples.x.shape[1] == 1 else "colour"
        said = f"{len(examples.converted)} of {len(examples.names)} images (first: "
        said += f"{examples.converted[0]}) were converted to {form}, as the model needs"
        tell(f"{data}: {said}")
    return examples


def not_trained_on(trained: Trained, examples: Examples, source: Path) -> Examples:
    """Return the examples that were not trained on, and say how many were."""
    old = trained.trained_on(examples)
    if not old.any():
        return examples
    said = f"{int(old.sum())} of {len(old)} examples {trained.called(examples)}"
    if old.all():
        allowed = "examples that were not trained on"
        raise SettingError("--held-out", f"{source}, {said}", allowed)
    tell(f"{source}: {said} and are left out")
    return examples.part((~old).nonzero().squeeze(1))


def names_of(trained: Trained, examples: Examples) -> dict[str, Any]:
    """Return the examples' names, and the run's column of ids."""
    from fedbary.settings.task_words import OfRows

    names: dict[str, Any] = {"example": list(examples.names)}
    column = trained.settings.of_task(OfRows).id
    if column in examples.columns:
        names[column] = examples.columns[column]
    return names


def aligned(found: dict[str, list[object]]) -> Iterator[str]:
    """Yield the scores as lines of a table."""
    rows = [list(found), *map(list, zip(*found.values(), strict=True))]
    cells = [[f"{c:.4g}" if isinstance(c, float) else shown(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True))


def with_ends(table: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns of which each that has a ``_low`` and a ``_high`` holds these in brackets."""
    found: dict[str, list[Any]] = {}
    for name, values in table.items():
        ends = [table.get(f"{name}{end}", [math.nan] * len(values)) for end in ("_low", "_high")]
        if not name.endswith(("_low", "_high")):
            found[name] = [
                f"{value:.4g} [{low:.3g}, {high:.3g}]" if low == low else value
                for value, low, high in zip(values, *ends, strict=True)
            ]
    return found


FEW_DRAWS = 50
"""Networks below which `fedbary predict` says what another draw would change."""

TRIED = 1000
"""Examples that it is tried on."""


def said_of_draws(trained: Trained, examples: Examples, samples: int | None) -> str:
    """Return how far another draw of as few networks moves the predictions; "" for many or one."""
    import torch

    from fedbary.predictive import Prediction

    part = examples.part(torch.arange(min(TRIED, len(examples.names))))
    one, other = (trained.predict(part, samples, seed) for seed in (0, 1))
    if not isinstance(one, Prediction) or not 1 < one.networks < FEW_DRAWS:
        return ""
    moved = float((one.probs - other.probs).square().mean().sqrt())
    turned = float((one.probs.argmax(-1) != other.probs.argmax(-1)).double().mean())
    if not moved:
        return ""
    return (
        f"{one.networks} networks are drawn: another {one.networks} move a probability by "
        f"{100 * moved:.2g} points, and the class of {100 * turned:.2g} % of the examples. More "
        "--samples narrow that"
    )


def select_referrals(
    trained: Trained,
    examples: Examples,
    known: Examples | None,
    error_rate: float,
    confidence: float,
) -> np.ndarray:
    """Return the cases that go to a person, (N,) bool, and print the guarantee for the others.

    Parameters
    ----------
    trained, examples
        The model, and the examples to predict.
    known
        Labelled examples that were not trained on; None: the run's sites' held-out examples.
    error_rate, confidence
        Largest fraction of errors among the kept, and the probability that it holds.

    Raises
    ------
    SettingError
        If there are no held-out examples, or a number is out of its range.
    """
    from fedbary.predictive.conformal import repeated_words, together
    from fedbary.predictive.risk import certain, risk_histogram, uncertainty_bins

    prediction = trained.scored_by_sites(examples)
    if not trained.signature.classes or prediction.probs.ndim > 2:
        raise SettingError("error_rate", error_rate, "none: an example has no single class")
    doubt = ""
    if known is not None and known.y is not None:
        doubt, known = trained.doubt(known), known.independent()
        assert known.y is not None
        counts = risk_histogram(trained.scored_by_sites(known), known.y)
    elif trained.sites:
        _, counts, repeated = together(trained.sites.values())
        doubt = repeated_words(repeated, int(counts.sum()), "held-out") if repeated else ""
    else:
        allowed = "--held-out with labelled examples, or a run with conformal=0.9"
        raise SettingError("confidence", confidence, allowed)
    found = certain(counts, error_rate, confidence)
    asked = f"at most {100 * error_rate:g} % wrong"
    asked += (
        f", without a guarantee ({doubt})" if doubt else f" with {100 * confidence:g} % confidence"
    )
    if found.number < 0:
        many = f"about {found.needed:,} would suffice" if found.needed else "more would not help"
        print(f"All go to a person: {found.examples} held-out examples do not show {asked}; {many}")
    flags: np.ndarray = (uncertainty_bins(prediction) > found.number).cpu().numpy()
    if found.number >= 0:
        print(
            f"Kept: {asked}. {found.kept} of {found.examples} held-out examples are kept, and "
            f"{found.wrong} of these are wrong. Here {int(flags.sum())} of {len(flags)} "
            "go to a person"
        )
    return flags


Run = Annotated[Path, typer.Argument(metavar="RUN")]
Data = Annotated[Path, typer.Argument(metavar="DATA")]
Samples = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of networks drawn; 0: the network of the means.",
        show_default="the run's",
    ),
]
Target = Annotated[
    str,
    typer.Option(help="Column of a table with the targets.", show_default="the run's"),
]
OwnCode = Annotated[
    bool, typer.Option("--own-code", help="Import the functions that the run's settings name.")
]
Level = Annotated[
    float | None,
    typer.Option(help="Rate at which sets hold the true class.", show_default="the run's"),
]
ForSite = Annotated[
    str | None,
    typer.Option(
        help="Make the sets for one site, by its own held-out examples, or its class counts.",
        show_default="all sites together",
    ),
]
ForGroup = Annotated[
    str | None,
    typer.Option(help="Predict by the model of this group.", show_default="the global model"),
]
Sensitivity = Annotated[
    float, typer.Option(help="Two classes: fraction of the second that a threshold finds.")
]
Alerts = Annotated[
    float, typer.Option(help="Two classes: largest fraction of rows that reach a threshold.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


def predict(
    run: Run,
    data: Data,
    samples: Samples = None,
    output: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("predictions.csv"),
    error_rate: Annotated[
        float | None,
        typer.Option(
            help="Refer uncertain cases to a person, so that at most this fraction of the kept "
            "predictions is wrong."
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Probability that the error rate is kept."),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Labelled examples that set the referral threshold.",
            show_default="the run's test set",
        ),
    ] = None,
    level: Level = None,
    site: ForSite = None,
    group: ForGroup = None,
    at: Annotated[
        list[float] | None,
        typer.Option(help="Survival: add the risk until this time; may be given again."),
    ] = None,
    target: Target = "",
    own_code: OwnCode = False,
    force: Force = False,
) -> None:
    """Predict examples with a federation's model, with uncertainty.

    RUN is the folder of a run that has ended. DATA is images (.npz with x, an image, a folder of
    images), rows (.csv or .parquet with the training columns, .npz) or texts (.csv or .parquet with
    the training column).

    The CSV has a line an example. Classes: the most probable class, all probabilities, total and
    epistemic uncertainty in nats. Numbers: mean, std and a 90 % interval. A run with conformal sets
    adds the classes in each example's set, or the ends of its interval. A picture beside the CSV
    shows the surest and the least sure images. A row with a level that the model does not know is
    referred to a person, without a prediction.

    Examples: `fedbary predict runs/RUN scans/ --samples 50`; `fedbary predict runs/RUN loans.csv
    --error-rate 0.01 --confidence 0.95`.
    """
    from fedbary.trained import load, writing
    from fedbary.trained.judgement import set_columns

    if held_out and error_rate is None:
        raise SettingError("--held-out", str(held_out), "only together with --error-rate")
    if confidence is not None and error_rate is None:
        raise SettingError("--confidence", confidence, "only together with --error-rate")
    trained = warn_if_untrained(load(run, own_code, group))
    picture = writing.picture_beside(output)
    writing.require_free([output, picture], force)
    examples = read(trained, data, target)
    prediction = trained.predict(examples, samples)
    said = trained.task.answers(prediction, trained.signature)
    names = names_of(trained, examples)
    with warnings_told():
        sets = set_columns(trained, examples, level, site)
    columns: dict[str, Any] = {**names, **said, **sets}
    if at:
        from fedbary.trained.risks import risks

        columns |= risks(trained, examples, at)
    if error_rate is not None:
        own = held_out and not_trained_on(
            trained, read(trained, held_out, target).known(), held_out
        )
        if confidence is None:
            known = own or trained.evaluation_examples()
            flags = _to_person(trained, prediction, error_rate, known, samples)
        else:
            flags = select_referrals(trained, examples, own or None, error_rate, confidence)
        columns["to a person"] = flags
    if examples.unknown:
        columns = {**names, **_referred(columns, names, examples.unknown)}
    with writing.only_writer(output, [picture], force):
        if examples.x.ndim == 4:  # the table comes last, so that it marks a complete output
            with spared(str(picture), tell):
                writing.write_picture(picture, _sheet(examples, columns))
        writing.write_table(output, columns)
    if len(sizes := sets.get("set size", ())) and not sizes.any():
        tell(
            "set: all are empty, as all classes are less probable than true ones of held-out "
            "examples were. conformal_score=aps leaves no set empty"
        )
    if draws := said_of_draws(trained, examples, samples):
        tell(draws)
    for name, values in said.items():
        if name.startswith("epistemic") and len(values) and not (values == values).any():
            tell(f"{name}: left empty, as one network predicts and tells nothing of it")
    print(f"Predictions: {output}, {len(examples.names)} examples")


def export(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="DEST")],
    samples: Samples = None,
    level: Level = None,
    site: ForSite = None,
    sensitivity: Sensitivity = 0.9,
    alerts: Alerts = 0.05,
    own_code: OwnCode = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
) -> None:
    """Write a federation's model as a folder that loads elsewhere, without fedbary.

    RUN is the folder of a run that has ended. DEST is the folder to write. The command needs the
    extra `onnx`.

    The folder holds model.onnx, posterior.safetensors, schema.json, thresholds.json, card.md and
    README.md with lines of Python that load it. The graph holds drawn networks. Its inputs are
    float32 images, whose bytes were divided by 255, or float64 rows in their own units, any number
    of them. Its outputs are the mean of the networks' probabilities, or mean and variance of a
    number, then the uncertainty, and each network's answer. With `--samples 0` it is the network of
    the posterior's means. A run with conformal sets adds these, or the ends of intervals. A run of
    coefficients has coefficients.csv.

    Examples: `fedbary export runs/RUN model`; `fedbary export runs/RUN model --samples 20`.
    """
    from fedbary.report.exported import write_export
    from fedbary.report.judged import Goals
    from fedbary.trained import load

    trained, goals = load(run, own_code), Goals(sensitivity, alerts)
    how = {"samples": samples, "level": level, "site": site}
    with warnings_told():
        held = write_export(trained, folder, force, goals=goals, **how)
    several = f"{held} networks" if held and held > 1 else "one network, of the means"
    said = "coefficients" if held is None else several if held else "in closed form"
    print(f"Export: {folder}, {said}")


def audit(
    run: Run,
    records: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RECORD ...]", show_default="those in RUN"),
    ] = None,
) -> None:
    """Show who made a run, and what was asked and sent, by the server's and the sites' records.

    RUN is a run's folder. RECORD is a site's own record, or its folder `state-path`.

    The command prints starts and ends, versions, sites with digests of their data, times of the
    rounds, messages with their numbers and bytes, and refusals. Then it compares the records,
    message by message. The last line is a digest of the run's folder. Exit status 1: the records
    differ.

    Examples: `fedbary audit runs/RUN`; `fedbary audit runs/RUN north/record/123.jsonl`.
    """
    from fedbary.report.audit import audit as audited

    lines, agrees = audited(run, records or [])
    print("\n".join(lines))
    if not agrees:
        raise typer.Exit(1)


def evaluate(
    run: Run,
    data: Data,
    samples: Samples = None,
    by: Annotated[
        str | None,
        typer.Option(help="Score each value of this column too; for images: folder, folder 2, …"),
    ] = None,
    level: Level = None,
    site: ForSite = None,
    target: Target = "",
    at: Annotated[
        float | None,
        typer.Option(help="Survival: score the risk until this time.", show_default="the run's"),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder to write.")] = Path("evaluation"),
    sensitivity: Sensitivity = 0.9,
    alerts: Alerts = 0.05,
    own_code: OwnCode = False,
    force: Force = False,
) -> None:
    """Score a federation's model on labelled examples of your own.

    RUN is the folder of a run that has ended. DATA is as for `fedbary predict`, with labels: an
    .npz with y, folders named as the classes, a CSV file with the target.

    The folder gets scores.csv, in all and for each group, with 95 % intervals, and report.html with
    calibration, thresholds and referral. A run with conformal sets has sets.csv, with their
    coverage and sizes, and set-sizes.png; and sites.csv, with those on each site's own held-out
    examples.

    Examples: `fedbary evaluate runs/RUN ward7.csv --by sex`; `fedbary evaluate runs/RUN test.npz`.
    """
    from fedbary.figures.run_pictures import set_size_picture
    from fedbary.report.judged import Goals, write_evaluation
    from fedbary.runs.conformal_kept import table_of_sites
    from fedbary.tasks.survival import Survival
    from fedbary.texts import alike
    from fedbary.trained import load, writing
    from fedbary.trained.judgement import scores, set_scores
    from fedbary.trained.risks import hazards

    trained = warn_if_untrained(load(run, own_code))
    writing.require_free([output], force)
    examples = read(trained, data, target, by).known()
    if not examples.names:
        raise SettingError("data", str(data), "a row whose levels the model knows")
    has_sets = trained.sites or level is not None or site is not None
    if examples.y is None:
        allowed = "labelled examples: y in an .npz, folders named as classes, the target's column; "
        allowed += "of survival also the column of events"
        raise SettingError("data", str(data), allowed)
    if count := int(trained.trained_on(examples).sum()):
        tell(f"{data}: {count} of {len(examples.names)} examples {trained.called(examples)}")
    if has_sets and (doubt := trained.doubt(examples)):
        tell(f"{data}: {doubt}, so coverage has no interval")
    if isinstance(trained.task, Survival):
        with warnings_told():
            prediction = hazards(trained, examples, at)
    elif at is not None:
        raise SettingError("--at", at, f"none for a run of task={trained.settings.task}")
    else:
        prediction = trained.predict(examples, samples)
    with warnings_told():
        found = scores(trained, prediction, examples, by)
    covered: dict[str, list[Any]] = {}
    by_site = table_of_sites(run) if trained.sites else {}
    with writing.written_whole(output, force) as folder:
        level_of_sets = 0.0
        if has_sets:
            thresholds = trained.thresholds(level, site)
            level_of_sets = thresholds.level
            if lacking := trained.lacking(level, site):
                tell(lacking)
            covered, hits, sizes = set_scores(trained, examples, thresholds, by)
            writing.write_table(folder / "sets.csv", covered)
            writing.write_table(folder / "sites.csv", by_site)
            with spared("set-sizes.png", tell):
                drawn = set_size_picture(hits, sizes, thresholds.level)
                writing.write_picture(folder / "set-sizes.png", drawn)
        with spared("report", tell):
            title, goals = f"{run.resolve().name}: {data.name}", Goals(sensitivity, alerts)
            held = (found, covered, level_of_sets, goals)
            write_evaluation(folder, title, trained, prediction, examples, *held)
        writing.write_table(folder / "scores.csv", found)
    for table in filter(None, map(with_ends, (found, covered, by_site))):
        print("\n".join(aligned(table)))
    for one, other in alike(found["group"]):
        said = f"{one!r} and {other!r} differ only in case or blanks, and count as two groups"
        print(f"{data}: {said}", file=sys.stderr)
    print(f"Evaluation: {output}")


def _referred(
    columns: dict[str, np.ndarray], names: Collection[str], unknown: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Return predictions; those in some places are referred to a person and say nothing."""
    import numpy as np

    count = len(columns["example"])
    here = np.isin(np.arange(count), unknown)
    person = here | columns.pop("to a person", np.zeros(count, dtype=bool))
    said = {
        name: np.where(here, "" if values.dtype == object else np.nan, values)
        for name, values in columns.items()
        if name not in names
    }
    return {**said, "to a person": person}


def _to_person(
    trained: Trained,
    prediction: object,
    error_rate: float,
    known: Examples,
    samples: int | None,
) -> np.ndarray:
    """Return the cases that go to a person, and print the errors on the held-out examples."""
    from fedbary.predictive import Prediction
    from fedbary.trained.judgement import CONFIDENCE, referral

    if not isinstance(prediction, Prediction) or not trained.signature.classes:
        allowed = "none without classes: an interval shows the uncertainty"
        raise SettingError("error_rate", error_rate, allowed)
    if known.y is None:
        raise SettingError("held_out", "examples without labels", "labelled examples")
    doubt, known = trained.doubt(known), known.independent()
    assert known.y is not None
    chosen = referral(trained.predict(known, samples), known.y, error_rate)
    flags = chosen.to_person(prediction)
    bound = f"at most {100 * chosen.bound:.2f} % with {100 * CONFIDENCE:.0f} % confidence"
    if chosen.kept:
        print(
            f"Kept: {100 * chosen.kept:.1f} % of {len(known.y)} held-out examples; "
            f"{100 * chosen.error:.2f} % of these are wrong ({doubt or bound}). "
            f"Here {int(flags.sum())} of {len(flags)} go to a person"
        )
    else:
        print("All go to a person: no threshold has so few errors on the held-out examples")
    return flags


def _sheet(examples: Examples, columns: dict[str, Any]):  # type: ignore[no-untyped-def]
    from fedbary.figures.sheet import contact_sheet

    uncertainty = columns["total uncertainty"]
    names = columns.get("class", columns.get("labels", [""] * len(uncertainty)))
    said = [f"{name}\n{u:#.2g} nats".strip() for name, u in zip(names, uncertainty, strict=True)]
    return contact_sheet(examples.x.cpu().numpy(), said, uncertainty)


def forget(
    run: Run,
    site: Annotated[str, typer.Argument(metavar="SITE")],
    output: Annotated[
        Path | None, typer.Option(help="Folder to write.", show_default="RUN-without-SITE")
    ] = None,
    own_code: OwnCode = False,
) -> None:
    """Take a site out of a run of LDA, Ridge or ConjugateGaussian, or of PVI covariance=full.

    RUN is the folder of a run that has ended. SITE is the name of a site, as in its log. The new
    folder has the model of a run without the site; of PVI it is the posterior without the site's
    factor. RUN stays as it is.

    Examples: `fedbary forget runs/RUN north`; `fedbary forget runs/RUN "partition 3" --output
    runs/WITHOUT`.
    """
    from fedbary.trained.forgetting import forget as without
    from fedbary.trained.forgetting import place_beside

    place = output or place_beside(run, site)
    for line in without(run, site, place, own_code):
        tell(line)
    print(f"Results: {place}")


def coefficients(
    run: Run,
    site: Annotated[
        str | None, typer.Option(help="Print this site's own estimates, too.", show_default="none")
    ] = None,
    without_each: Annotated[
        bool, typer.Option("--without-each", help="Print the estimates without each site, too.")
    ] = False,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Go on where cells were filled in or rounds have not settled."
        ),
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder to write.")] = Path("coefficients"),
    own_code: OwnCode = False,
    force: Force = False,
) -> None:
    """Print the coefficients of a linear run on tables, with intervals and how sites differ.

    RUN is the folder of a run that has ended: of PVI with inference=laplace covariance=full
    model=linear, or of ConjugateGaussian, Ridge or LDA.

    Coefficients are in the columns' own units, levels against the first one, classes against the
    first. The folder gets coefficients.csv, with each site's own estimates and those without it,
    and forest.png. Of task=survival it also gets the sites' curves, survival.csv and survival.png,
    and calibration.csv.

    Examples: `fedbary coefficients runs/RUN`; `fedbary coefficients runs/RUN --site north
    --without-each --level 0.9`.
    """
    from fedbary.tasks.survival import Survival
    from fedbary.trained import load, risks, writing

    writing.require_free([output], force)
    trained = load(run, own_code)
    found = trained.coefficients(level, anyway)
    said = found.summary(site, without_each)
    with writing.written_whole(output, force) as folder:
        with spared("forest.png", tell):
            writing.write_picture(folder / "forest.png", found.picture())
        writing.write_table(folder / "coefficients.csv", found.table)
        if isinstance(trained.task, Survival):
            if curves := risks.survival_of(trained, level):
                writing.write_table(folder / "survival.csv", curves)
            with spared("survival.png", tell):
                if (drawn := risks.picture(trained, level)) is not None:
                    writing.write_picture(folder / "survival.png", drawn)
            if (bins := risks.calibration(trained)) is not None:
                writing.write_table(folder / "calibration.csv", vars(bins))
    print(f"{said}\nCoefficients: {output}")
