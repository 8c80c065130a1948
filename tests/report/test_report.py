"""The report says what the table says, from the table alone; the smoke experiment is really run."""

import re
import subprocess
from pathlib import Path

import forked
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbary.errors import SettingError
from fedbary.figures.document import Document
from fedbary.report.report import (
    beside,
    compared,
    metrics_of,
    sort_methods_by_mean,
    write,
    write_report,
)
from fedbary.report.results import ACCURACY, NLL, Results, differences, marked
from fedbary.scores.stats import corrected, paired
from fedbary.study.arms import with_methods
from fedbary.study.table import COMMON, ROUNDS, RUNS, read_table, write_about, write_table
from fedbary.tasks import task_class
from findings import maker

RNG = np.random.default_rng(0)
ROOT = Path(__file__).resolve().parents[2]
NLLS = {"FedAvg": 0.40, "RKLB": 0.35, "PVI": 0.30, "FedProx": 0.40, "pFedBayes": 0.50}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The smoke experiment's results and report, made by the two commands."""
    results = tmp_path_factory.mktemp("smoke") / "out"
    grid = ROOT / "findings" / "smoke" / "grid.yaml"
    shorter = ["clients=2", "rounds=1", "local_epochs=1", "samples=5", "pictures=false"]
    shorter += ["--only", "bayesian_layers=0,3"]
    for words in (["sweep", grid, *shorter, "--results", results], ["report", results]):
        done = subprocess.run(
            [forked.command(), *map(str, words)],
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    return results


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """Five methods at three seeds; a difference from FedAvg moves by seed a hundredth of itself."""
    folder = tmp_path_factory.mktemp("methods")
    best = read_table(ROOT / "findings" / "best")
    best = best[best["dataset"] == "fashionmnist"]
    runs = []
    for name, nll in NLLS.items():
        method, n = ("barycentre", 3) if name == "RKLB" else (name, 0 if "Fed" in name[:3] else 3)
        rule = name if name in ("RKLB", "FedAvg") else "RKLB"
        for seed in range(3):
            made = best[best["run"] == best["run"].iloc[0]].assign(
                run=f"{name}-{seed}", seed=seed, rule=rule, bayesian_layers=n, nll=nll,
                method="barycentre" if name == "FedAvg" else method,
            )  # fmt: skip
            noise = 0.001 * seed + (nll - 0.4) * 0.01 * seed
            noise += 0.01 * (seed - 1) if name == "FedProx" else 0
            runs.append(made.assign(nll=nll + noise, **{"bytes.up": 1e6 * (1 + (n > 0))}))
    write_table(folder, runs)
    write_report(folder)
    return folder


def plain(cell):
    return cell.replace("**", "")


def table_of(markdown, heading):
    """The first table after a heading: its header, and its rows by their first cell."""
    lines = markdown.partition(heading)[2].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([plain(cell.strip()) for cell in line.split("|")[1:-1]])
    return rows[0], {row[0]: row for row in rows[2:]}


def ranked(folder):
    return table_of((folder / "report.md").read_text(), "## Methods side by side")


@pytest.mark.slow
def test_a_cell_is_the_mean_and_deviation_over_the_seeds(smoke):
    table = read_table(smoke)
    last = table[(table["round"] == table["rounds"]) & (table["rule"] == "RKLB")]
    last = last[last["bayesian_layers"] == 3]
    header, rows = ranked(smoke)
    accuracy, nll, row = 100 * last["accuracy"], last["nll"], rows["RKLB"]
    assert row[1:3] == ["3", str(len(last))]
    assert row[header.index("Accuracy %")] == f"{accuracy.mean():.2f} ± {accuracy.std():.2f}"
    assert row[header.index("NLL")] == f"{nll.mean():.3f} ± {nll.std():.3f}"


@pytest.mark.slow
def test_the_page_needs_no_other_file_and_names_every_run(smoke):
    page, markdown = ((smoke / f"report.{kind}").read_text() for kind in ("html", "md"))
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources and all(source.startswith("data:image/png;base64,") for source in sources)
    assert page.count("<table>") == markdown.count("| --- |\n")
    assert markdown.startswith("# Smoke test on handwritten digits\n")
    assert all(f"`{name}`" in markdown for name in read_table(smoke)["run"].unique())


@pytest.mark.slow
def test_the_table_alone_gives_the_same_report(smoke, tmp_path):
    for name in (COMMON, RUNS, ROUNDS, "about.yaml"):
        (tmp_path / name).write_bytes((smoke / name).read_bytes())
    write_report(tmp_path)
    for file in ["report.md", "report.html"]:
        assert (tmp_path / file).read_bytes() == (smoke / file).read_bytes()


@pytest.mark.slow
def test_what_differs_or_went_wrong_in_some_runs_is_said(smoke, tmp_path):
    table = read_table(smoke)
    alone = table["seed"] == 0
    table.loc[table["rule"] == "WB", "lr"] = 0.5
    other = table.assign(run=table["run"] + "-x", kl_weight=0.1, accuracy=0.123)
    end = (table["rule"] == "WB") & (table["bayesian_layers"] == 3) & alone
    table.loc[end, ["accuracy", "nll", "ece_15", "ece_100"]] = None
    table.loc[end & (table["round"] == 1), "skipped"] = True
    write_table(tmp_path, [pd.concat([table, other], ignore_index=True)])
    write_report(tmp_path)
    assert ranked(tmp_path)[1]["WB, kl_weight=0.1"][3] == "12.30 ± 0.00"
    markdown = (tmp_path / "report.md").read_text()
    assert "– (1 of 2 missing)" in markdown
    assert "Rounds were skipped" in markdown and "`digits-WB-n3-seed0` (1)" in markdown
    write_table(tmp_path, [table[alone]])
    write_report(tmp_path)
    row = ranked(tmp_path)[1]["RKLB"]
    assert row[2] == "1" and "±" not in row[3]
    assert "Not all runs on Digits have the same lr" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_a_table_without_what_is_needed_is_refused(smoke, tmp_path):
    with pytest.raises(SettingError):
        write_report(tmp_path / "absent")
    write_table(tmp_path, [read_table(smoke).drop(columns="nll")])
    with pytest.raises(SettingError, match="a column nll"):
        write_report(tmp_path)


@pytest.mark.parametrize("parameter", ["damping", "step"])
def test_runs_of_a_method_are_told_apart_by_its_parameters(tmp_path, parameter):
    first = read_table(ROOT / "findings" / "best")
    first = first[first["run"] == first["run"].iloc[0]]

    def run(name, seed, accuracy, **settings):
        made = first.assign(run=name, seed=seed, accuracy=accuracy)
        for key, value in settings.items():
            if key in made:
                made[key] = value
            else:
                made.insert(list(made).index("commit"), key, value)
        return made

    runs = [run(f"rule{seed}", seed, 0.7) for seed in (0, 1)]
    for value, accuracy in ((0.1, 0.9), (0.05, 0.8)):
        chosen = {"method": "PVI", parameter: value}
        runs += [run(f"{value}-{seed}", seed, accuracy, **chosen) for seed in (0, 1)]
    write_table(tmp_path, runs)
    write_report(tmp_path)
    rows = ranked(tmp_path)[1]
    for value, accuracy in ((0.1, 90), (0.05, 80)):
        assert rows[f"PVI, {parameter}={value}"][2:4] == ["2", f"{accuracy}.00 ± 0.00"]
    assert rows["RKLB"][3].startswith("70.00 ± 0.00")
    assert "Not all runs" not in (tmp_path / "report.md").read_text()


def test_a_task_without_scores_of_its_own_shows_those_whose_course_it_draws(five, tmp_path):
    table, document = read_table(five), Document(tmp_path, "Unknown")
    shown = metrics_of("text")
    assert [m.label for m in shown] == [label for _, _, label, _ in task_class("text").curves]
    write(Results.of(table, five), document, shown)
    document.write()
    header, rows = ranked(tmp_path)
    assert set(header) <= {"method", "n", "runs", *(metric.label for metric in shown)}
    assert list(rows) == list(ranked(five)[1])


def test_runs_of_the_grid_that_failed_are_said_until_they_are_made(five, tmp_path):
    table = read_table(five)
    write_table(tmp_path, [table[table["run"] != "PVI-0"]])
    write_about(tmp_path, "Five", "", {"PVI-0": "a <b>reason</b>", "RKLB-0": "not made"})
    text = write_report(tmp_path).with_suffix(".md").read_text()
    assert "**1 run of the grid is not here.**" in text and "`PVI-0`: a \\<b\\>reason" in text
    write_table(tmp_path, [table])
    assert "not here" not in write_report(tmp_path).with_suffix(".md").read_text()


# Methods beside each other


def test_methods_are_ranked_by_nll(five):
    rows = ranked(five)[1]
    assert list(rows) == ["PVI", "RKLB", *sorted(["FedAvg", "FedProx"]), "pFedBayes"]
    assert all(row[2] == "3" for row in rows.values())
    assert "| PVI | 3 | 3 |" in (five / "report.md").read_text()


def test_a_difference_that_every_seed_shows_is_told_and_noise_is_not(five):
    text = (five / "report.md").read_text()
    (decided,) = [line for line in text.splitlines() if line.startswith("Decided in NLL")]
    assert text.count("Least seen is") == 1 and "<summary>Every pair by the other scores" in text
    for sure in ("PVI is below FedAvg", "RKLB is below FedAvg", "FedAvg is below pFedBayes"):
        assert sure in decided
    assert not re.search(r"(FedAvg|FedProx) is \w+ (FedAvg|FedProx)", decided)
    header, rows = table_of(text, "clients and costs")
    assert rows["FedAvg"][next(i for i, name in enumerate(header) if "up" in name)] == "1.00 ± 0.00"


def named_of(table, folder):
    return sort_methods_by_mean(Results.of(table, folder).last, NLL)


def means_of(table, folder):
    return from_plain(named_of(table, folder)).set_index("first")["mean"].to_dict()


def from_plain(named):
    return compared(named, beside([name for name, _ in named]), [NLL])


def test_pairs_are_of_one_seed_whatever_the_order_of_the_rows(five):
    table = with_methods(read_table(five)).sample(frac=1, random_state=0)
    named = dict(named_of(table, five))
    for found in from_plain([*named.items()]).itertuples():
        mine, other = (named[name].set_index("seed")["nll"] for name in (found.first, "FedAvg"))
        assert found.mean == pytest.approx(float((mine - other).mean())) and found.pairs == 3


def test_runs_of_other_settings_are_no_repeats_and_a_failed_seed_wins_nothing(five):
    """PVI at two rates and with two n; FedProx, best of all, but for a seed without a score."""
    table = read_table(five)
    pvi = table[table["method"] == "PVI"]
    other = [
        pvi.assign(run=pvi["run"] + "-lr", lr=0.1, nll=pvi["nll"] + 0.1),
        pvi.assign(run=pvi["run"] + "-n", bayesian_layers=1, nll=pvi["nll"] + 0.2),
    ]
    table = pd.concat([table, *other], ignore_index=True)
    table.loc[table["method"] == "FedProx", "nll"] = 0.01
    table.loc[(table["method"] == "FedProx") & (table["seed"] == 2), "nll"] = np.nan
    found = means_of(table, five)
    assert sum("PVI" in name for name in found) == 3
    (first,) = [name for name in found if name.startswith("PVI, n = 3") and "0.1" not in name]
    assert found[first] == pytest.approx(-0.101)
    assert named_of(table, five)[-1][0] == "FedProx"


def test_plain_averaging_that_predicts_by_dropout_is_a_method_beside_fedavg(five):
    table = read_table(five)
    averaged = table[table["rule"] == "FedAvg"]
    dropped = averaged.assign(
        predictive="dropout", run=averaged["run"] + "-d", nll=averaged["nll"] - 0.05
    )
    found = means_of(pd.concat([table, dropped], ignore_index=True), five)
    assert found["MC dropout"] == pytest.approx(-0.05) and "FedAvg" not in found


def test_every_own_model_stands_below_the_global_one_on_the_same_data(five, tmp_path):
    table = read_table(five)
    heads = {"global": 0.5, "personal": 0.8, "projected-1/2": 0.9}
    for model, score in heads.items():
        column = f"personal.held_out.{model}.weighted_accuracy"
        table[column] = (score + 0.01 * table["seed"]).where(table["method"] == "pFedBayes")
    write_table(tmp_path, [table])
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text().partition("Models of the clients' own")[2]
    rows = re.findall(r"^\| (pFedBayes) \| (.+?) \| (.+?) \|", text.partition("\n#")[0], re.M)
    assert [row[1:] for row in rows] == [
        ("global", "51.00 ± 1.00"), ("own", "81.00 ± 1.00"), ("projected, λ = 1/2", "91.00 ± 1.00")
    ]  # fmt: skip


@pytest.mark.parametrize("draws", [49, 50])
def test_methods_are_compared_on_the_ece_of_enough_draws_alone(draws, five, tmp_path):
    table = read_table(five)
    write_table(tmp_path, [table.assign(samples=np.where(table["seed"] == 0, draws, 50))])
    text = write_report(tmp_path).with_suffix(".md").read_text()
    scores = {line.split(" | ")[1] for line in text.splitlines() if " − " in line and "[" in line}
    assert any("ECE" in score for score in scores) == (draws >= 50) and "Accuracy %" in scores


# Differences and their tests


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.001, 0.999))
def test_holm_rejects_as_stepping_down_does(p_values, level):
    """From the least p on, reject while p ≤ level / (those that are left)."""
    rejected, order = set(), sorted(range(len(p_values)), key=p_values.__getitem__)
    for done, i in enumerate(order):
        if (len(order) - done) * p_values[i] > level:
            break
        rejected.add(i)
    found = corrected(p_values)
    assert {i for i, p in enumerate(found) if p <= level} == rejected
    assert all(p >= before for p, before in zip(found, p_values, strict=True))


def test_what_was_not_tested_does_not_count():
    found = corrected([0.02, np.nan, 0.04])
    assert found[0] == 0.04 and np.isnan(found[1]) and found[2] == 0.04


def test_the_best_is_bold():
    shown = ["a", "b", "c", "d"]
    assert marked(NLL, [0.3, 0.2, 0.4, 0.2001], shown) == ["a", "**b**", "c", "**d**"]
    assert marked(ACCURACY, [90.0, 80, 85, 70], shown) == ["**a**", "b", "c", "d"]
    assert marked(NLL, [np.nan, 0.2, 0.3, 0.4], shown)[1] == "**b**"


def of_sides(*sides):
    """The differences of two sides' NLLs, given as (NLLs, their n) with a seed each."""
    rows = pd.concat(
        pd.DataFrame({"side": name, "bayesian_layers": n, "seed": seeds, "nll": nll})
        for name, nll, n, seeds in sides
    ).sample(frac=1, random_state=0)
    found = differences(rows, [(sides[0][0], sides[1][0])], [NLL], ["seed"])
    return maker.ranked(found, rows, ("bayesian_layers", "seed"))


def test_sides_are_compared_on_the_points_they_share_whatever_their_order():
    good, bad = 0.3 + 0.01 * RNG.random(9), 0.5 + 0.1 * RNG.random(9)
    (found,) = of_sides(("RKLB", good, 3, range(9)), ("WB", bad, 3, range(9))).itertuples()
    assert (found.first, found.second, found.test.pairs) == ("RKLB", "WB", 9)
    known = vars(paired(good, bad))
    assert {key: getattr(found, key) for key in known} == pytest.approx(known)
    assert found.test.first > 0.95 and found.test.second < 0.05


def test_points_of_one_seed_are_no_independent_pairs():
    """Nine n at three seeds, whose differences are the seeds' alone: three pairs."""
    seeds, layers, noise = np.arange(27) % 3, np.arange(27) // 3 + 1, RNG.random(27)
    by_seed = np.array([0.1, 0.2, 0.4])
    one, other = ("RKLB", noise + by_seed[seeds], layers, seeds), ("WB", noise, layers, seeds)
    (found,) = of_sides(one, other).itertuples()
    expected = paired(by_seed, np.zeros(3))
    assert found.test.pairs == 27 and found.pairs == 3
    assert found.t_test == pytest.approx(expected.t_test) and expected.t_test > 0.1
    assert found.wilcoxon == 0.25
