"""The report of a single run: what it is, its scores with intervals, what they leave open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedbary.data.examples import Examples
from fedbary.data.layout import Layout
from fedbary.errors import SettingError
from fedbary.figures.courses import courses
from fedbary.figures.document import Document, Markup, code, escape
from fedbary.figures.run_pictures import partition_heatmap
from fedbary.predictive.conformal import interval
from fedbary.report.audit import exchanges_of, names_of, refusals, traffic
from fedbary.report.card import CARD, LEFT, card_of
from fedbary.report.judged import (
    LABELS,
    Goals,
    add_groups,
    add_judgement,
    add_risks,
    add_scores,
    add_sets,
    label,
    shown,
)
from fedbary.report.results import UNCERTAINTY, own_models
from fedbary.runs import schema
from fedbary.runs.conformal_kept import table_of_sites, tested
from fedbary.runs.failing import verdict
from fedbary.runs.location import RECORD, SETTINGS, UNUSED, is_deployed
from fedbary.runs.progress import duration
from fedbary.runs.record import read_record
from fedbary.runs.whole import write_whole
from fedbary.scores.intervals import NONE, by_std, of_auroc
from fedbary.settings.config import bookkeeping, read_yaml
from fedbary.study.arms import plain, written
from fedbary.study.table import public, read_run, result_rows
from fedbary.tasks import Task
from fedbary.tasks._classes import NLL_STD
from fedbary.tasks.glm import Glm
from fedbary.tasks.survival import Survival
from fedbary.trained import load, risks
from fedbary.trained.coefficients import RATIOS, ends
from fedbary.trained.judgement import Judged, judged, scores, units_of
from fedbary.trained.run import Trained

MOST_LEVELS = 8
"""Levels of a column up to which each is a group of the report."""

ALL_SITES = "all sites"
"""Name of the sites together."""

OF_SITES = ("accuracy", "nll", "auroc", "sensitivity", "ece")
"""Scores of what sites hold out."""

UNKNOWN: Judged = (math.nan, math.nan, math.nan)

SEVERAL = 10
"""Names in a table or a sentence; more are counted."""


def write_run(folder: Path, own_code: bool, goals: Goals) -> None:
    """Write a run's `report.html`, `report.md`, `figures/` and `card.md` into its folder.

    Raises
    ------
    SettingError, RunError
        As `fedbary.load`.
    """
    trained = load(folder, own_code)
    document = report_of(trained, goals)
    document.write()
    write_whole(folder / CARD, card_of(trained, document).encode())


def report_of(trained: Trained, goals: Goals) -> Document:
    """Return the report of a run, for the run's folder; nothing is written yet.

    The test rows are read again, and predicted by the networks that scored the run. Where they are
    not here, the scores are those that the sites sent of what they hold out.
    """
    folder = trained.folder
    made = read_yaml(folder / SETTINGS)
    document = Document(folder, folder.resolve().name)
    cautions: list[str] = []
    examples, why = _test_rows(trained)
    sites = of_sites(trained, made)
    of_all = _summary_of_sites(sites, trained.task)
    if examples is None:
        if not isinstance(trained.task, Glm):
            cautions.append(f"{why}. fedbary evaluate {folder} DATA scores labelled rows of yours")
        add_run(document, trained, made, folder, [why, *of_all], 0)
    else:
        cautions += _add_scored(document, trained, made, folder, examples, goals, of_all)
    if isinstance(trained.task, Glm):
        _add_coefficients(document, trained)
    _add_sites(document, sites, trained)
    cautions += _add_sets(document, trained, folder)
    _add_temperature(document, trained)
    _add_rest(document, trained, folder)
    add_record(document, folder)
    document.heading("Cautions")
    document.bullets([*cautions, *_cautions(trained, examples)])
    _add_settings(document, trained, made, folder)
    return document


def _test_rows(trained: Trained) -> tuple[Examples | None, str]:
    """Return the rows that scored the run; or None, and why they are not here."""
    if isinstance(trained.task, Glm):
        return None, "All rows train. The coefficients are the result"
    try:
        examples = trained.evaluation_examples()
    except SettingError as error:
        return None, f"The test rows are not here ({error})"
    if isinstance(layout := trained.signature, Layout):
        examples = replace(examples, columns=levels_of(examples.x, layout))
    return examples, ""


def _add_coefficients(document: Document, trained: Trained) -> None:
    """Add the table of coefficients, its notes and its forest."""
    document.heading("Coefficients")
    try:
        found = trained.coefficients()
    except SettingError as error:
        document.text("There is no table: {error}.", error=error)
        return
    named, (low, high) = found.table, ends(found.level)
    outcomes = named["outcome"].unique()
    by_site = "tau" in named and named["tau"].notna().any()
    tau = """tau is the standard deviation of the sites' own coefficients. p differ is of the test
        that these are equal: if it is small, read the coefficient as a mean of sites that
        differ."""
    document.text(
        """{title}. {outcome}Intervals are of 95 %. P(> 0) is the probability of a coefficient above
        0. {tau}""",
        tau=tau if by_site else "",
        title=found.title,
        outcome=Markup("" if len(outcomes) > 1 else f"The outcome is {escape(outcomes[0])}. "),
    )
    ratios = [name for name in RATIOS.values() if name in named]
    numbers = [name for name in ("estimate", *ratios, "P(> 0)", "tau", "p differ") if name in named]

    def cell(row: Mapping[str, Any], name: str) -> str:
        value, sides = row[name], [row[low], row[high]]
        if np.isnan(value) or (not row["unit"] and name in (*ratios, "P(> 0)")):
            return ""  # an intercept, a baseline: against nothing
        if name in ("P(> 0)", "p differ"):
            return "<0.001" if value < 0.001 else ">0.999" if value > 0.999 else f"{value:.3f}"
        if name == "tau":
            return f"{value:.3g}"
        one, two = np.exp(sides) if name in ratios else sides
        return f"{value:.4g} [{one:.4g}, {two:.4g}]"

    words = ["outcome", "term", "unit"] if len(outcomes) > 1 else ["term", "unit"]
    rows = named.to_dict("records")
    cells = [
        [*(str(row[w]) for w in words), *(cell(row, name) for name in numbers)] for row in rows
    ]
    document.table([*words, *numbers], cells)
    document.bullets(found.notes)
    document.figures(
        [("forest", found.picture())],
        f"All sites together{', and each site alone' if by_site else ''}. An interval that crosses "
        "the line leaves the direction open.",
    )
    if isinstance(trained.task, Survival):
        _add_survival(document, trained)


def _add_survival(document: Document, trained: Trained) -> None:
    """Add curves, and the calibration at the sites' own rows."""
    if (curves := risks.picture(trained)) is not None:
        document.heading("Survival")
        caption = "All sites' rows, by events and time at risk between two cuts. Bands are of 95 %."
        document.figures([("survival", curves)], caption)
    if (bins := risks.calibration(trained)) is not None:
        add_risks(document, bins, float(trained.told["at"]))
        document.text("The rows are those that were trained on. New rows may differ more.")


def levels_of(x: Tensor, layout: Layout) -> dict[str, np.ndarray]:
    """Return the level of each row (N, D) in each column of a few levels, by the column's name."""
    found, place = {}, 0
    for name, levels in layout.columns:
        if 1 < len(levels) <= MOST_LEVELS:
            part = x[:, place : place + len(levels)]
            words = np.array([*levels, "missing"], dtype=object)
            at = part.nan_to_num().argmax(1).where(part.isfinite().all(1), len(levels))
            found[name] = words[at.numpy()]
        place += max(1, len(levels))
    return found


def _add_scored(
    document: Document,
    trained: Trained,
    made: Mapping[str, Any],
    folder: Path,
    examples: Examples,
    goals: Goals,
    of_all: Sequence[str],
) -> list[str]:
    """Add what the test rows show; return cautions."""
    task, y = trained.task, examples.y
    assert y is not None
    prediction, doubt = trained.as_scored(examples), trained.doubt(examples)
    others = dict(task.simpler())
    found = judged(task, {"this model": prediction, **others}, y, units_of(examples), not doubt)
    said = _summary(found, task, y, trained.signature.classes)
    add_run(document, trained, made, folder, [*said, *of_all], len(y))
    document.heading("Scores")
    alone = {
        "accuracy": "Clopper and Pearson's for an accuracy",
        "auroc": "Newcombe's for an AUROC",
        "coverage_90": "Clopper and Pearson's for targets in an interval",
    }
    closed = [words for name, words in alone.items() if name in found["this model"]]
    grouped = examples.groups is not None
    how = "the rows are drawn anew"
    if closed and not grouped:
        how = f"{', '.join(closed)}; {how} for other scores"
    document.text(
        """On {rows} test rows{groups}. {ends} {rival}""",
        rows=f"{len(y):,}",
        groups=f" of {len(units_of(examples).unique())} groups" if grouped else "",
        ends=f"{doubt}: scores have no intervals." if doubt else f"Intervals are of 95 %: {how}.",
        rival="The linear model is fitted to all training rows in one place."
        if "linear model" in others
        else "",
    )
    add_scores(document, found, task)
    cautions = add_judgement(
        document, task, prediction, y, tuple(trained.signature.classes), goals, not doubt
    )
    if examples.columns:
        document.heading("By group")
        document.text("The test rows of each level of a column.")
        of_columns = [scores(trained, prediction, examples, name) for name in examples.columns]
        names = of_columns[0]
        joined = {name: [v for one in of_columns for v in one[name]] for name in names}
        add_groups(document, joined, task)
    return [*cautions, *([f"{doubt}: scores have no intervals"] if doubt else [])]


def _summary(
    found: Mapping[str, Mapping[str, Judged]], task: Task, y: Tensor, classes: Sequence[str]
) -> list[str]:
    """Return what the scores say, in a few sentences."""
    own, said = found["this model"], []
    if len(classes) == 2 and y.ndim == 1:
        named = f"{target}=" if (target := _target(task)) else ""
        said.append(f"{int((y == 1).sum())} of {len(y)} test rows are {named}{classes[1]}")
    for score, words in (
        ("accuracy", "{} % of the test rows are predicted right"),
        ("auroc", "The AUROC is {} %"),
        ("rmse", "The RMSE is {}"),
    ):
        if score in own:
            said.append(words.format(shown(label(score, task), own[score])))
    for name, gap in ((name, other.get("nll")) for name, other in found.items() if "−" in name):
        if gap is not None:
            than, size = name.partition("− ")[2], shown(label("nll", task), gap)
            side = "better than" if gap[2] < 0 else "worse than" if gap[1] > 0 else ""
            if not side:
                side = "beside" if math.isnan(gap[1]) else "not told apart from"
            said.append(f"By its NLL it is {side} the {than}: a difference of {size} nats")
    return said


def _target(task: Task) -> str:
    """Return the column that is predicted; "" if the run names none."""
    target = str(dict(task.settings).get("target", "y"))
    return "" if target == "y" else target


def _summary_of_sites(sites: Mapping[str, tuple[int, dict[str, Judged]]], task: Task) -> list[str]:
    """Return a sentence on the scores of what all sites hold out, if they are known."""
    rows, held = sites.get(ALL_SITES, (0, {}))
    words = {"accuracy": "{} % are predicted right", "auroc": "the AUROC is {} %"}
    said = [w.format(shown(label(n, task), held[n])) for n, w in words.items() if n in held]
    return [f"On {rows:,} rows that the sites hold out, {', and '.join(said)}"] if said else []


def add_run(
    document: Document,
    trained: Trained,
    made: Mapping[str, Any],
    folder: Path,
    summary: Sequence[str],
    tested: int,
) -> None:
    """Add the first sections: the answer, what the run is, and who holds what."""
    if summary:
        document.text("**{summary}.**", summary=". ".join(summary))
    settings, line = trained.settings, trained.line
    counts, sites = np.array(made["label_counts"]), [str(site) for site in made["sites"]]
    classes = [str(name) for name in trained.signature.classes]
    seconds = sum(each[schema.SECONDS] for each in trained.rounds)
    real = is_deployed(folder)
    data, own = written(Path(settings.dataset).name), UNUSED in made
    server = "the sites' own" + (f"; {data} at the server" if settings.dataset != "none" else "")
    network = f"{settings.model}, {sum(p.numel() for p in trained.network.parameters()):,} weights"
    best = line[schema.ROUND] != trained.rounds[-1][schema.ROUND]
    predicted = f"{settings.strategy}, Gaussian layers: {settings.bayesian_layers}"
    held = who_holds_what(trained, sites, counts, classes)
    several = ", ".join(classes) if len(classes) <= 4 else f"{len(classes)} classes"
    told = f": {several}" if classes else ""
    rows = [
        ["data", server if own else data],
        ["rows at the sites", ", ".join(_totals(*held)).replace(", ", ": ", 1)],
        ["task", settings.task],
        *([["predicts", f"{target}{told}"]] if (target := _target(trained.task)) else []),
        ["sites", f"{len(sites)} {'real' if real else 'simulated'}"],
        ["model", network],
        ["method", predicted],
        [
            "rounds",
            f"{trained.rounds[-1][schema.ROUND]}"
            + (f", the model is of round {line[schema.ROUND]}" if best else ""),
        ],
        ["began, took", f"{made['started'][:16].replace('T', ' ')}, {duration(seconds)}"],
        ["test rows", f"{tested:,}" if tested else "none here"],
    ]
    if isinstance(task := trained.task, Glm):
        events, called, columns = task.events(trained.facts)
        rows.insert(2, [called, f"{events:,.0f}, for {columns} columns"])
        rows.insert(-2, ["last step", f"{line[schema.STEP]:.2g} standard errors"])
    document.table(["this run", folder.resolve().name], rows)
    document.heading("Data")
    document.table(*held, "" if len(sites) <= SEVERAL else f"All {len(sites)} sites")
    if counts.size and counts.ndim == 2 and len(classes) > 2:
        drawn = partition_heatmap(counts, sites if real else (), classes)
        document.figures(
            [("partition", drawn)], "Rows of each class at each site, held-out ones too."
        )


def who_holds_what(
    trained: Trained, sites: Sequence[str], counts: np.ndarray, classes: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Return a row a site: what it holds, what it trains on and what it holds out."""
    trains, held_out = (
        {one["site"]: one["num-examples"] for line in trained.rounds for one in said(line)}
        for said in (lambda line: line.get(schema.CLIENTS, ()), _told)
    )
    if trained.sites and not held_out:
        kept = table_of_sites(trained.folder)
        held_out = dict(zip(kept["site"], kept["examples"], strict=True))
    shown_classes = list(classes) if 0 < len(classes) <= 4 and counts.ndim == 2 else []
    body = []
    for at, site in enumerate(sites):
        own = counts[at].tolist() if counts.ndim == 2 else []
        known = trains.get(site, 0), held_out.get(site, 0)
        cells = sum(own) or sum(known), *(own if shown_classes else ()), *known
        body.append([site, *(map(str, cells) if any(cells) else ["–"] * len(cells))])
    return ["site", "rows", *shown_classes, "trains on", "holds out"], body


def _totals(head: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the sums of a table's columns, rows and classes."""
    for at, name in enumerate(head[1:-2], 1):
        total = sum(int(row[at]) for row in body if row[at] != "–")
        yield f"{total:,}" if name == "rows" else f"{total:,} {name}"


def _told(line: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return what each site sent of the rows that it holds out, in a round."""
    found: Sequence[Mapping[str, Any]] = line.get(schema.HELD_OUT, {}).get("clients", ())
    return found


def of_sites(trained: Trained, made: Mapping[str, Any]) -> dict[str, tuple[int, dict[str, Judged]]]:
    """Return the held-out rows and the scores of all sites together, and of each.

    The intervals of an accuracy and a sensitivity are Clopper and Pearson's, an AUROC's is
    Newcombe's; they suppose that a site holds out each class in its own share. All sites' scores
    are means by rows; their AUROC is the mean of the sites' own by pairs of rows.
    """
    known, counts = (
        not trained.task.group,
        dict(zip(made["sites"], made["label_counts"], strict=True)),
    )
    told = [(str(one["site"]), int(one["num-examples"]), one) for one in _told(trained.line)]
    told = [(site, rows, one) for site, rows, one in told if rows]
    pairs = {}
    for site, rows, _ in told:
        if known and len(own := counts.get(site, ())) == 2 and min(own):
            pairs[site] = rows * own[1] / sum(own), rows * own[0] / sum(own)
    found = {}
    for name, part in ((ALL_SITES, told), *((one[0], [one]) for one in told)):
        total, scores = sum(rows for _, rows, _ in part), dict[str, Judged]()
        for score in OF_SITES:
            have = [(site, rows, one) for site, rows, one in part if score in one]
            if not have:
                continue
            weights, ends = [rows for _, rows, _ in have], NONE
            paired = [pairs[site] for site, *_ in have if site in pairs]
            if len(paired) == len(have) and score in ("auroc", "sensitivity"):
                weights = [m * (n if score == "auroc" else 1) for m, n in paired]
            value = float(np.average([one[score] for *_, one in have], weights=weights))
            if score == "accuracy" and known:
                ends = interval(round(value * sum(weights)), round(sum(weights)))
            elif score == "sensitivity" and len(paired) == len(have):
                events = max(1, round(sum(weights)))
                ends = interval(round(value * events), events)
            elif score == "auroc" and len(paired) == len(have):
                ends = of_auroc(value, paired)
            elif score == "nll" and known:
                stds = np.array([one.get(NLL_STD, math.nan) for *_, one in have])
                ends = by_std(value, float(np.linalg.norm(stds * weights)) / sum(weights))
            scores[score] = (value, *ends)
        found[name] = total, scores
    return found if told else {}


def _add_sites(document: Document, found: Mapping[str, Any], trained: Trained) -> None:
    """Add the scores that each site sent of what it holds out, see `of_sites`."""
    if not found:
        return
    task, names = trained.task, list(found[ALL_SITES][1])
    document.heading("By site")
    document.text(
        """The global model on the rows that each site holds out. A site sends sums alone.
        Intervals are Clopper and Pearson's for accuracy and sensitivity, normal for an NLL, and
        Newcombe's for an AUROC, as if a site held out each class in its own share. {ece}
        {bare}""",
        ece="An ECE has none: a site sends it alone." if "ece" in names else "",
        bare="These scores are without the temperature."
        if schema.TEMPERATURE in trained.line
        else "",
    )
    body = [
        [site, str(rows), *(shown(label(n, task), held.get(n, UNKNOWN)) for n in names)]
        for site, (rows, held) in found.items()
    ]
    head = ["site", "held out", *(label(name, task).label for name in names)]
    document.table(head, body, "" if len(body) <= SEVERAL else f"All {len(body) - 1} sites")


def _add_sets(document: Document, trained: Trained, folder: Path) -> list[str]:
    """Add the sets' coverage of test rows and of each site's rows; return cautions."""
    if not trained.sites:
        return []
    rows = [(name, scores, "coverage") for name, scores in tested(folder).items()]
    sites = table_of_sites(folder)
    for at, site in enumerate(sites["site"]):
        own = {key: values[at] for key, values in sites.items()}
        rows.append((f"{site}, by the other sites' thresholds", own, "covered_by_others"))
    return add_sets(document, trained, rows, trained.thresholds().level)


def _add_temperature(document: Document, trained: Trained) -> None:
    """Add what the temperature changes."""
    line, task = trained.line, trained.task
    if schema.TEMPERATURE not in line:
        return
    document.heading("Temperature")
    document.text(
        "Probabilities are taken to the power 1/T with T = {t}, fitted on what sites hold out.",
        t=f"{line[schema.TEMPERATURE]:.3g}",
    )
    before = line.get(schema.UNTEMPERED, {})
    body = [
        [
            label(name, task).label,
            *(shown(label(name, task), (v, np.nan, np.nan)) for v in (old, line[name])),
        ]
        for name, old in before.items()
        if name in LABELS and line.get(name) is not None and old is not None
    ]
    if body:
        document.table(["on the test rows", "T = 1", "this T"], body)


def _add_rest(document: Document, trained: Trained, folder: Path) -> None:
    """Add the rounds, the uncertainties and the clients' own models."""
    document.heading("Rounds")
    drawn = [(curve[0], courses({"": [trained.rounds]}, [curve])) for curve in trained.task.curves]
    document.figures(drawn, "Scores after each round.")
    last = result_rows(read_run(folder.resolve().name, folder))
    known = [m for m in UNCERTAINTY if m.column in last and last[m.column].notna().all()]
    known = [m for m in known if not m.column.startswith("rejection")]
    if known:
        document.heading("Uncertainty")
        document.text(
            """Means over the test rows. Aleatoric uncertainty stays with more data; epistemic
            uncertainty is of the weights, and shrinks with data. Total is their sum. By chance a
            calibrated model would have that ECE on as many rows."""
        )
        document.table(["", "mean"], [[m.label, m.show(last[m.column])] for m in known])
    own_models(document, [(trained.settings.strategy, last)])


def add_record(document: Document, folder: Path) -> None:
    """Add when the run was made, and what each site was asked and sent.

    User and host stay in the record: a report is handed on.
    """
    document.heading("Record")
    if not (folder / RECORD).exists():
        document.text("This folder has no record of its messages.")
        return
    events, damaged = read_record(folder / RECORD)
    exchanges, names = exchanges_of(events), names_of(events)
    kept = ("start", "resumed", "stopped", "end")
    document.bullets(
        "  ".join([each["time"], each["event"], *(f"code {each[k]}" for k in each if k == "code")])
        for each in events
        if each["event"] in kept
    )
    if said := refusals(folder, events, names):
        more = [f"{len(said) - SEVERAL} more"] if len(said) > SEVERAL else []
        document.text("Errors, nodes left out and replies refused:")
        document.bullets([*said[:SEVERAL], *more])
    if damaged:
        document.text("{damaged} lines cannot be read: cut off, or changed.", damaged=damaged)
    document.text(
        "{command} shows who started it and each round, and compares the sites' own records.",
        command=code("fedbary audit"),
    )
    document.heading(LEFT)
    document.text(
        """Every message of the run, by the server's record. Numbers are those of arrays, of lists
        and single ones; bytes are those of the whole content."""
    )
    found = traffic(exchanges, names)
    counted = ("messages", "numbers from it", "bytes from it", "numbers to it", "bytes to it")
    body = [[*key, *(f"{total[name]:,}" for name in counted)] for key, total in found.items()]
    fold = f"All {len(names)} sites" if len(body) > 2 * SEVERAL else ""
    document.table(["site", "question", *counted], body, fold)


def _cautions(trained: Trained, examples: Examples | None) -> Iterator[str]:
    """Yield what a reader should know before using the model."""
    if said := verdict(trained.line):
        yield said
    yield from trained.rounds[0].get(schema.CAUTIONS, ())
    later = trained.rounds[1:]
    if skipped := sum(bool(one.get(schema.SKIPPED)) for one in later):
        yield f"{skipped} of {len(later)} rounds were skipped, for want of admitted replies"
    if refused := sum(len(one.get(schema.REFUSED, ())) for one in later):
        first = next(one[schema.REFUSED][0] for one in later if one.get(schema.REFUSED))
        yield f"{refused} replies were refused; the first: {first}"
    if silent := {name for one in later for name in one.get(schema.UNANSWERED, ())}:
        yield f"Sites that left a question open: {', '.join(sorted(silent)[:SEVERAL])}"
    if trained.settings.server_validates and trained.settings.keep_best != "none":
        yield "The rows that are scored here chose the round of the model: new rows may score worse"
    if trained.sites and (lacking := trained.lacking()):
        yield lacking
    if examples is not None and (old := int(trained.trained_on(examples).sum())):
        yield f"{old} of {len(examples.x)} test rows are equal to rows trained on"
    yield "Intervals are of the rows alone. Another site or later data may differ more"
    if isinstance(trained.task, Glm):
        yield "Coefficients tell what goes together in these rows, not what causes what"
        yield "All rows train: nothing here shows how well the model predicts new rows"
        return
    yield "It is one run of one seed. fedbary sweep repeats it and shows how much seeds differ"


def _add_settings(
    document: Document, trained: Trained, made: Mapping[str, Any], folder: Path
) -> None:
    """Add every setting and version."""
    document.heading("Settings and versions")
    settings = public(made["settings"])
    used = [key for key in settings if key not in bookkeeping()]
    rows = [[code(key), plain(settings[key])] for key in used]
    about = {"commit": made["commit"], "device": made["device"], **made["versions"]}
    if trained.data is not None:
        about["digest of the data"] = trained.data.said["content"]
    rows += [[code(key), plain(value)] for key, value in about.items()]
    document.table(["setting or version", "value"], rows, f"All {len(rows)}")
