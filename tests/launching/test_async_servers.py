"""Real servers without rounds: the journal of arrivals, from which the same run is made again."""

import subprocess

import forked
import pytest
import yaml
from every_method import night, of_tables
from processes import marked, servers_of, wait_until
from runs_of import lines, posterior, same

from fedbary.commands import start


def federation(folder, **changes):
    """The command that makes a run of PVI without rounds on real servers, in `folder`/run."""
    settings = of_tables("PVI", mode="async", buffer=2, **changes)
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings.model_dump()))
    return [forked.command(), "deploy", "settings.yaml", "output=run"]


@pytest.mark.slow
def test_on_real_servers_every_reply_counts_and_a_replay_has_the_same_bits(tmp_path):
    """Flower hands a reply out once; two often come in one look. Half a minute on loopback."""
    done = subprocess.run(
        federation(tmp_path, rounds=5), cwd=tmp_path, env=marked(tmp_path), capture_output=True,
        text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert servers_of(tmp_path) == []
    found = lines(tmp_path / "run")[1:]
    assert len(found) == 5
    for line in found:
        assert (line["refused"], line["unanswered"], line["skipped"]) == ([], [], False)
        assert {row["end"] for row in line["journal"]} == {"replied"}
        assert line["admitted"] == len(line["journal"]) >= 2
    start.replay(tmp_path / "run", tmp_path / "again")
    assert same(posterior(tmp_path / "run"), posterior(tmp_path / "again"))


@night
@pytest.mark.slow
def test_a_run_that_was_stopped_and_went_on_is_replayed_to_the_same_bits(tmp_path):
    """Two deployments on loopback, a minute: one is stopped, the other goes on to the end."""
    command = federation(tmp_path, rounds=6)
    run = tmp_path / "run"
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=marked(tmp_path), stdout=output, stderr=output
        )
    wait_until((run / "checkpoint-0002.safetensors").exists, alive=process)
    process.terminate()
    assert process.wait(120) == 130
    assert len(lines(run)) < 7
    done = subprocess.run(
        [*command, "resume=last"], cwd=tmp_path, env=marked(tmp_path), capture_output=True,
        text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert servers_of(tmp_path) == []

    journal = [row for line in lines(run)[1:] for row in line["journal"]]
    arrived = [row["arrived"] for row in journal]
    assert len(lines(run)) == 7 and arrived == sorted(set(arrived))
    start.replay(run, tmp_path / "again")
    assert same(posterior(run), posterior(tmp_path / "again"))
    again = [row for line in lines(tmp_path / "again")[1:] for row in line["journal"]]
    assert again == journal
