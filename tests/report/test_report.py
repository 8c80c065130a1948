"""The report says what the table says, from the table alone; the smoke experiment is really run."""

import re
import subprocess
from pathlib import Path

import forked
import numpy as np
import pandas as pd
import pytest

from fedbary.errors import SettingError
from fedbary.report.cells import ACCURACY, NLL, marked
from fedbary.report.differences import pairs_table
from fedbary.report.document import Document
from fedbary.report.pairs import compare, enough_draws, of_draws
from fedbary.report.report import write_report
from fedbary.scores.stats import corrected, paired
from fedbary.study.files import COMMON, ROUNDS, RUNS
from fedbary.study.table import read_table, write_table

RNG = np.random.default_rng(0)
ROOT = Path(__file__).resolve().parents[2]


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


def cells(markdown, *first):
    """The cells of the first table row that begins with these."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown.splitlines()]
    return next(row for row in rows if row[: len(first)] == list(first))


def plain(cell):
    return re.sub(r"\*\*|</?u>", "", cell)


@pytest.mark.slow
def test_a_cell_is_the_mean_and_deviation_over_the_seeds(smoke):
    table = read_table(smoke)
    last = table[(table["round"] == table["rounds"]) & (table["rule"] == "RKLB")]
    last = last[last["bayesian_layers"] == 3]
    row = [plain(cell) for cell in cells((smoke / "report.md").read_text(), "3", "RKLB")]
    accuracy, nll = 100 * last["accuracy"], last["nll"]
    assert row[2] == str(len(last))
    assert row[3] == f"{accuracy.mean():.2f} ± {accuracy.std():.2f}"
    assert row[-1] == f"{nll.mean():.3f} ± {nll.std():.3f}"


@pytest.mark.slow
def test_the_report_has_every_section_picture_and_run(smoke):
    markdown = (smoke / "report.md").read_text()
    assert markdown.startswith("# Smoke test on handwritten digits\n")
    for name in ("triangles", "ece-nll", "fairness", "seconds", "rejection"):
        assert f"(figures/{name}.png)" in markdown
        assert (smoke / "figures" / f"{name}.png").stat().st_size > 5_000
    assert all(f"`{name}`" in markdown for name in read_table(smoke)["run"].unique())


@pytest.mark.slow
def test_the_page_needs_no_other_file(smoke):
    page = (smoke / "report.html").read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources and all(source.startswith("data:image/png;base64,") for source in sources)
    assert page.count("<table>") == (smoke / "report.md").read_text().count("| --- |\n")


@pytest.mark.slow
def test_the_table_alone_gives_the_same_report(smoke, tmp_path):
    for name in (COMMON, RUNS, ROUNDS, "about.yaml"):
        (tmp_path / name).write_bytes((smoke / name).read_bytes())
    write_report(tmp_path)
    for file in ["report.md", "report.html"]:
        assert (tmp_path / file).read_bytes() == (smoke / file).read_bytes()


@pytest.mark.slow
def test_runs_that_differ_in_more_are_told_apart(smoke, tmp_path):
    table = read_table(smoke)
    other = table.assign(run=table["run"] + "-x", kl_weight=0.1, accuracy=0.123)
    write_table(tmp_path, [pd.concat([table, other])])
    write_report(tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    assert plain(cells(markdown, "3", "WB, kl_weight=0.1")[3]) == "12.30 ± 0.00"


@pytest.mark.parametrize("parameter", ["damping", "step"])
def test_runs_of_a_method_are_told_apart_by_its_parameters(tmp_path, parameter):
    """Two settings at two seeds, and a barycentre."""
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

    runs = [run(f"barycentre{seed}", seed, 0.7) for seed in (0, 1)]
    for value, accuracy in ((0.1, 0.9), (0.05, 0.8)):
        chosen = {"method": "PVI", parameter: value}
        runs += [run(f"{value}-{seed}", seed, accuracy, **chosen) for seed in (0, 1)]
    write_table(tmp_path, runs)
    write_report(tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    for value, accuracy in ((0.1, 90), (0.05, 80)):
        row = cells(markdown, "3", f"PVI, {parameter}={value}")
        assert row[2] == "2" and plain(row[3]).startswith(f"{accuracy}.00 ± 0.00")
    assert plain(cells(markdown, "3", "RKLB")[3]).startswith("70.00 ± 0.00")
    assert "Not all runs" not in markdown


@pytest.mark.slow
def test_one_seed_has_no_deviation(smoke, tmp_path):
    table = read_table(smoke)
    write_table(tmp_path, [table[table["seed"] == 0]])
    write_report(tmp_path)
    row = cells((tmp_path / "report.md").read_text(), "3", "WB")
    assert row[2] == "1" and "±" not in row[3]


@pytest.mark.slow
def test_no_results_is_a_clear_error(tmp_path):
    done = subprocess.run(
        [forked.command(), "report", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("fedbary: results:") and RUNS in done.stderr
    with pytest.raises(SettingError):
        write_report(tmp_path / "absent")


def test_the_best_is_bold_and_the_best_of_a_group_underlined():
    shown = ["a", "b", "c", "d"]
    groups = [0, 1, 1, 1]
    assert marked(NLL, [0.3, 0.2, 0.4, 0.2001], shown, groups) == [
        "a", "**<u>b</u>**", "c", "**<u>d</u>**",
    ]  # fmt: skip
    assert marked(ACCURACY, [90.0, 80, 85, 70], shown, groups) == ["**a**", "b", "<u>c</u>", "d"]
    assert marked(NLL, [np.nan, 0.2, 0.3, 0.4], shown, groups)[1] == "**<u>b</u>**"


def test_cells_may_hold_what_markdown_reads_otherwise(tmp_path):
    document = Document(tmp_path, "A & B <c>")
    document.table(["x"], [["a|b"]])
    document.write()
    page = (tmp_path / "report.html").read_text()
    assert "<td>a|b</td>" in page and "<title>A &amp; B &lt;c&gt;</title>" in page


def runs_of(rule, nll, layers=3, **others):
    count = len(nll)
    return pd.DataFrame(
        {"arm": rule, "bayesian_layers": layers, "seed": range(count), "nll": nll, **others}
    )  # fmt: skip


def test_rules_are_compared_on_the_points_they_share_whatever_their_order():
    good, bad = 0.3 + 0.01 * RNG.random(9), 0.5 + 0.1 * RNG.random(9)
    one, other = runs_of("RKLB", good), runs_of("WB", bad).sample(frac=1, random_state=0)
    (found,) = compare(pd.concat([one, other]), NLL).itertuples()
    assert (found.first, found.second, found.points) == ("RKLB", "WB", 9)
    assert {key: getattr(found, key) for key in vars(paired(good, bad))} == vars(paired(good, bad))
    assert found.test.first > 0.95 and found.test.second < 0.05


def test_a_method_without_a_common_n_is_compared_by_its_mean_over_its_own():
    """FedAvg has n = 0, RKLB n = 1 and 3: a difference a seed, and every pair is tested."""
    low, high, plain_nll = RNG.random(3), RNG.random(3), RNG.random(3)
    rows = pd.concat(
        [runs_of("RKLB", low, 1), runs_of("RKLB", high, 3), runs_of("FedAvg", plain_nll, 0),
         runs_of("WB, power=2", high, 3)]
    )  # fmt: skip
    found = compare(rows, NLL).set_index(["first", "second"])
    assert len(found) == 3 and (found["pairs"] == 3).all()
    assert found.loc[("RKLB", "FedAvg"), "mean"] == pytest.approx(
        ((low + high) / 2 - plain_nll).mean()
    )
    assert found.loc[("RKLB", "WB, power=2"), "mean"] == 0
    expected = corrected(found["t_test"].tolist())
    assert list(found["holm"]) == pytest.approx(expected, nan_ok=True)


def test_points_of_one_seed_are_no_independent_pairs():
    """Nine n at three seeds, whose differences are the seeds' alone: three pairs."""
    seeds = np.arange(27) % 3
    layers, noise = np.arange(27) // 3 + 1, RNG.random(27)
    by_seed = np.array([0.1, 0.2, 0.4])
    one, other = (
        runs_of(rule, level, layers).assign(seed=seeds)
        for rule, level in (("RKLB", noise + by_seed[seeds]), ("WB", noise))
    )
    (found,) = compare(pd.concat([one, other]), NLL).itertuples()
    expected = paired(by_seed, np.zeros(3))
    assert found.points == 27 and found.pairs == 3
    assert found.t_test == pytest.approx(expected.t_test) and expected.t_test > 0.1
    assert found.wilcoxon == 0.25


def test_a_table_of_pairs_has_the_effect_with_its_interval_first():
    one, other = runs_of("RKLB", [0.3, 0.5, 0.4]), runs_of("WB", [0.4, 0.8, 0.6])
    header, (row,) = pairs_table(compare(pd.concat([one, other]), NLL))
    assert header[:3] == ["pair", "NLL [95 %]", "first better"]
    assert row[:5] == ["RKLB − WB", "-0.200 [-0.448, +0.048]", "3 of 3", "0.074", "0.250"]
    single = compare(
        pd.concat([runs_of(r, [0.1, 0.2], [1, 2], seed=0) for r in ("RKLB", "WB")]), NLL
    )
    (row,) = pairs_table(single)[1]
    assert row[1:5] == ["+0.000", "0 of 1, 1 equal", "–", "–"] and row[5].endswith("2 points)")


@pytest.mark.parametrize("draws", [10, 49, 50, 200])
def test_rules_are_compared_on_the_ece_of_enough_draws_alone(draws):
    last = pd.DataFrame({"samples": [50, draws], "monte_carlo.ece_15": [0.001, 0.002]})
    assert enough_draws(last) == (draws >= 50)
    assert ("0.15 points" in of_draws(last)) == (draws >= 50)
    assert ("not compared" in of_draws(last)) == (draws < 50)


@pytest.mark.slow
def test_a_run_that_diverged_is_no_part_of_a_best_mean(smoke, tmp_path):
    table = read_table(smoke)
    end = (table["rule"] == "WB") & (table["bayesian_layers"] == 3) & (table["seed"] == 0)
    table.loc[end, ["accuracy", "nll", "ece_15", "ece_100"]] = None
    table.loc[end & (table["round"] == 1), "skipped"] = True
    write_table(tmp_path, [table])
    write_report(tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    assert cells(markdown, "3", "WB")[3] == "– (1 of 2 missing)"
    assert "Rounds were skipped" in markdown and "`digits-WB-n3-seed0` (1)" in markdown


@pytest.mark.slow
def test_settings_that_differ_between_rules_are_pointed_out(smoke, tmp_path):
    table = read_table(smoke)
    table.loc[table["rule"] == "WB", "lr"] = 0.5
    write_table(tmp_path, [table])
    write_report(tmp_path)
    assert "Not all runs on Digits have the same lr" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_a_table_without_what_is_needed_is_refused(smoke, tmp_path):
    write_table(tmp_path, [read_table(smoke).drop(columns="nll")])
    with pytest.raises(SettingError, match="a column nll"):
        write_report(tmp_path)
