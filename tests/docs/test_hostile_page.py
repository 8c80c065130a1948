"""Tables and map of the page on hostile clients show each rule under each condition."""

import numpy as np
import pandas as pd
import pytest

from fedbary.study.table import FORMAT, write_table
from findings.hostile import page as hostile


@pytest.fixture(scope="module")
def accuracies():
    rng = np.random.default_rng(0)
    shape = len(hostile.ARMS), len(hostile.conditions()), hostile.SEEDS
    return pd.DataFrame(
        [(*index, rng.uniform()) for index in np.ndindex(shape)],
        columns=["arm", "condition", "seed", "accuracy"],
    )


@pytest.fixture(scope="module")
def results(accuracies, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    rows = []
    for number, run in enumerate(accuracies.itertuples()):
        arm, condition = hostile.ARMS[run.arm], hostile.conditions()[run.condition]
        attacked = condition not in (hostile.HONEST, hostile.TWO_CLASSES)
        rows.append(
            {
                "format": FORMAT, "run": f"run-{number}", "dataset": "digits",
                "rule": arm.split(",")[0], "mixing": arm.endswith("mixing"), "seed": run.seed,
                "attack": condition.replace(" ", "_") if attacked else "none",
                "partition": "classes" if condition == hostile.TWO_CLASSES else "dirichlet",
                "rounds": 1, "round": 1, "accuracy": run.accuracy,
            }
        )  # fmt: skip
    write_table(folder, [pd.DataFrame(rows)])
    return folder


def grid(text):
    """The cells of a table in Markdown, without its head and its first column."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:]] for line in lines[2:]]


def by_seed(accuracies, arm, condition):
    of_it = accuracies[(accuracies["arm"] == arm) & (accuracies["condition"] == condition)]
    return 100 * of_it["accuracy"].to_numpy()


def test_the_map_and_the_table_hold_every_mean_in_its_place(results, accuracies):
    rows = hostile.read(results)
    image, *_ = hostile.picture(results).axes
    shown = np.array([text.get_text() for text in image.texts]).reshape(len(hostile.ARMS), -1)
    (drawn,) = image.images
    cells = grid(hostile.accuracy_table(rows))
    for arm, condition in np.ndindex(shown.shape):
        found = by_seed(accuracies, arm, condition)
        assert drawn.get_array()[arm, condition] == pytest.approx(found.mean(), rel=1e-4)
        assert float(shown[arm, condition]) == pytest.approx(found.mean(), abs=0.51)
        mean, least = map(float, cells[arm][condition].split("/"))
        assert (mean, least) == pytest.approx((found.mean(), found.min()), abs=0.051)
    assert [label.get_text() for label in image.get_yticklabels()] == list(hostile.ARMS)


def test_points_lost_are_the_rule_s_own_without_mixing_where_nobody_attacks(results, accuracies):
    cells = grid(hostile.lost_table(hostile.read(results)))
    for line, name in zip(cells, ("RKLB", "WB"), strict=True):
        plain, mixed = (hostile.ARMS.index(arm) for arm in (name, f"{name}, mixing"))
        for condition, called in enumerate(hostile.conditions()):
            beside = condition if called == hostile.TWO_CLASSES else 0
            lost = by_seed(accuracies, plain, beside) - by_seed(accuracies, mixed, condition)
            mean, most = map(float, line[condition].split("/"))
            assert (mean, most) == pytest.approx((lost.mean(), lost.max()), abs=0.051)


def test_late_accuracies_are_the_means_over_each_run_s_last_rounds(results, tmp_path):
    """Runs of several lengths; what was before their last rounds counts for nothing."""
    last = hostile.read(results).drop(columns=["arm", "condition"])
    rows = []
    for index, run in enumerate(last.to_dict("records")):
        rounds = hostile.LATE + index % 3
        for number in range(rounds + 1):
            from_middle = number - rounds + (hostile.LATE - 1) / 2
            away = 0.01 * from_middle if number > rounds - hostile.LATE else 9
            accuracy = run["accuracy"] + away
            rows.append(run | {"rounds": rounds, "round": number, "accuracy": accuracy})
    write_table(tmp_path, [pd.DataFrame(rows)])
    found = hostile.read_late(tmp_path).set_index("run")["accuracy"]
    written = 1e-5  # the table has six digits of a number
    wanted = last.set_index("run")["accuracy"]
    assert found.to_dict() == pytest.approx(wanted.to_dict(), abs=written)


def test_a_schedule_s_losses_are_against_itself_without_hostile_clients(accuracies, tmp_path):
    """Each folder has a schedule of its own, whose accuracies are another share of the others'."""
    shares = dict(zip(hostile.SCHEDULES, (1.0, 0.5), strict=True))
    for name, share in shares.items():
        rows = [
            {
                "format": FORMAT, "run": f"{rule}-{mixing}-{attack}-{seed}", "dataset": "digits",
                "rule": rule, "mixing": mixing, "seed": seed, "attack": attack,
                "partition": "dirichlet", "rounds": 1, "round": 1, "lr_schedule": name,
                "accuracy": share * (0.9 - 0.1 * mixing - 0.02 * seed * (attack != "none")),
            }
            for rule in ("RKLB", "WB")
            for mixing, attack in ((False, "none"), (True, "none"), (True, "sign_flip"))
            for seed in range(hostile.SEEDS)
        ]  # fmt: skip
        (tmp_path / name).mkdir()
        write_table(tmp_path / name, [pd.DataFrame(rows)])
    text = hostile.schedules_table(tmp_path)
    assert text.splitlines()[0].endswith("| mixing, nobody attacks | mixing, sign flip |")
    for line in text.splitlines()[2:]:
        _, schedule, plain, mixed, flipped = (cell.strip() for cell in line.strip("|").split("|"))
        share = shares[schedule.split(", ")[1]]
        assert float(plain) == pytest.approx(90 * share)
        assert mixed == f"{10 * share:.1f} / {10 * share:.1f}"
        assert flipped == f"{12 * share:.1f} / {14 * share:.1f}"


def test_lengths_are_told_apart_by_their_folders(tmp_path):
    for share, name in enumerate(hostile.LENGTHS, 1):
        rows = [
            {
                "format": FORMAT, "run": f"{mixing}-{seed}", "dataset": "digits", "rule": "WB",
                "mixing": mixing, "seed": seed, "attack": "none", "partition": "dirichlet",
                "rounds": 1, "round": 1, "accuracy": 0.9 - 0.1 * mixing * share,
            }
            for mixing in (False, True)
            for seed in range(hostile.SEEDS)
        ]  # fmt: skip
        (tmp_path / name).mkdir()
        write_table(tmp_path / name, [pd.DataFrame(rows)])
    text = hostile.lengths_table(tmp_path)
    assert [line.strip("| ").split(" | ")[1:] for line in text.splitlines()[2:]] == [
        [label, "90.0", f"{10 * share}.0 / {10 * share}.0"]
        for share, label in enumerate(hostile.LENGTHS.values(), 1)
    ]
