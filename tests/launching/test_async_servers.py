"""Real servers without rounds: the journal of arrivals, from which the same run is made again."""

import pytest
from every_method import of_tables, same
from processes import deployed
from runs_of import lines

from fedbary.commands import start


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.slow
def test_on_real_servers_every_reply_counts_and_a_replay_has_the_same_bits(tmp_path):
    """Flower hands a reply out once; two often come in one look. Half a minute on loopback."""
    deployed(
        of_tables("PVI", mode="async", clients=2, buffer=2, rounds=2, local_epochs=1), tmp_path
    )
    found = lines(tmp_path / "run")[1:]
    assert len(found) == 2
    for line in found:
        assert (line["refused"], line["unanswered"], line["skipped"]) == ([], [], False)
        assert {row["end"] for row in line["journal"]} == {"replied"}
        assert line["admitted"] == len(line["journal"]) >= 2
    start.replay(tmp_path / "run", tmp_path / "again")
    assert same(tmp_path / "run", tmp_path / "again")
