"""Which answers of nodes count, and which node holds a name or a partition."""

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from nodes import roster_of, settings

import client_app
from server_app.roster.claims import Claims
from server_app.roster.member import member_from


def test_no_fewer_than_min_replies_are_asked_if_they_are_there():
    grid, roster = roster_of(settings(clients=4, participation=0.5, min_replies=2))
    roster.gather()
    grid.online = grid.online[:3]
    assert len(roster.participants(1)) == 2
    grid.online = grid.online[:2]
    assert len(roster.participants(2)) == 2


HONEST = {"partition-id": 0, "num-partitions": 3, "num-examples": 9, "label-counts": [1] * 10}


@pytest.mark.parametrize(
    ("metrics", "name", "reason"),
    [
        (None, "a", "does not say in whole numbers"),
        ({**HONEST, "num-examples": 0.5}, "a", "does not say in whole numbers"),
        ({**HONEST, "label-counts": [1] * 9}, "a", "9 examples and holds"),
        ({**HONEST, "num-examples": -1}, "a", "-1 examples and holds"),
        ({**HONEST, "partition-id": 3}, "a", "partition 3 of 3"),
        ({**HONEST, "num-examples": 11}, "a", "11 examples and holds"),
        ({**HONEST, "label-counts": [10**12] * 10}, "a", "9 examples and holds"),
        (HONEST, "a" * 65, "1 to 64 printable"),
        (HONEST, "a\nb", "1 to 64 printable"),
        (HONEST, None, "1 to 64 printable"),
    ],
)
def test_answers_that_are_none_are_refused(metrics, name, reason):
    content = RecordDict()
    if metrics is not None:
        content["metrics"] = MetricRecord(metrics)
    if name is not None:
        content["site"] = ConfigRecord({"name": name})
    with pytest.raises(ValueError, match=reason):
        member_from(7, content, classes=10)


def test_one_node_that_lies_about_the_partitions_stalls_nobody():
    app = ClientApp()

    @app.query()
    def query(message, context):
        reply = client_app.query(message, context)
        if context.node_config["partition-id"] == 0:
            reply.content["metrics"]["num-partitions"] = 10**9
        return reply

    grid, roster = roster_of(settings(round_timeout=3600), app)
    roster.gather()
    assert len(roster.members) == 3


@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.sampled_from("abcde"))), max_size=20))
def test_a_claim_is_of_whoever_made_it_last_and_of_nobody_once_given_up(answers):
    claims, owners = Claims({}), {}
    for node, made in answers:
        claims.give(made, node)
        owners = {claim: holder for claim, holder in owners.items() if holder != node}
        owners |= dict.fromkeys(made, node)
        assert {c: claims.owner(c, 9, lambda _: True) for c in "abcde"} == {
            c: owners.get(c) for c in "abcde"
        }
