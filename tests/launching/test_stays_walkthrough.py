"""A federation that stays, on real servers: the documentation's lines, and kills of the service."""

import pytest
import yaml
from every_method import night
from runs_of import lines
from walkthroughs import run_script, staying

pytestmark = [pytest.mark.slow, night]

KILLED = """
python ../examples/deployment/cut_sites.py sites 3
for AFTER in 2 6 12; do
  fedbary stay ours runs stays.yaml &
  sleep $AFTER; kill -KILL $!
done
for TRY in 1 2 3 4 5; do
  if [ ! -f runs/0003/posterior.safetensors ]; then sleep 5; fedbary stay ours runs stays.yaml; fi
done
"""
"""A third run, whose service is killed three times."""


def test_the_next_run_starts_when_there_are_new_examples_whenever_the_service_is_killed(tmp_path):
    start, months, end = staying()
    said, clone = run_script([*start[:-1], months, "set +e\n", KILLED, end], tmp_path)
    assert said.count("so none is new") >= 1
    runs = clone / "federation" / "runs"
    assert sorted(each.name for each in runs.iterdir()) == ["0001", "0002", "0003"], said
    for number in (1, 2, 3):
        (clients,) = (line["clients"] for line in lines(runs / f"000{number}")[1:])
        assert [client["site"] for client in clients] == ["north", "south", "west"]
        start = yaml.safe_load((runs / f"000{number}" / "settings.yaml").read_text())
        assert start["settings"]["start_from"].endswith(
            f"000{number - 1}" if number > 1 else "none"
        )
