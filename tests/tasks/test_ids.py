"""Ids that repeat over sites: counted by a server that cannot tell one, named at the sites."""

import hmac
import itertools

import numpy as np
import pandas as pd
import pytest
from flwr.common.serde import message_to_proto
from hypothesis import given
from hypothesis import strategies as st

from fedbary.client_app import app
from fedbary.data.ids import digests, shared, split
from fedbary.data.sites import site_from
from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.server_app.look import hold
from fedbary.settings.config import resolve
from fedbary.tasks._look.findings import findings

KEY = "a key of the sites"
IDS = {"a": [f"P{k:05}" for k in range(60)], "b": [f"P{k:05}" for k in range(40, 90)]}
IDS["c"] = [f"Q{k}" for k in range(30)] + ["P00001", "P00001"]


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.text(max_size=2)), min_size=1))
def test_shared_digests_are_those_of_names_that_two_sites_have(names):
    told = {site: digests(held, KEY) for site, held in names.items()}
    found = shared(told)
    for site, held in names.items():
        others = {n for other, own in names.items() if other != site for n in own}
        rows = sorted(row for digest in found[site] for row in told[site][digest])
        assert rows == [row for row, name in enumerate(held) if name and name in others]
        assert split(b"".join(told[site])) == [*told[site]]


@pytest.mark.parametrize("wrong", [b"1", b"2" * 8 + b"1" * 8, b"1" * 16, b"1" * 9])
def test_other_bytes_are_no_digests(wrong):
    with pytest.raises(ValueError, match="digests"):
        split(wrong)


def test_a_short_key_is_refused_and_no_key_is_printed():
    with pytest.raises(SettingError, match="16 characters or more") as caught:
        site_from({"data-path": "x.csv", "id-key": "secret"})
    assert "secret" not in str(caught.value)
    assert KEY not in repr(site_from({"data-path": "x.csv", "id-key": KEY}))


def look(folder, keys, spoil=lambda reply: None):
    """Look at three sites with these keys: what is found, and all bytes that they send."""
    rng, replies, nodes = np.random.default_rng(0), [], []
    for (name, ids), key in zip(IDS.items(), keys, strict=True):
        table = pd.DataFrame({"patient": ids, "age": rng.normal(60, 9, len(ids))})
        table.to_csv(folder / f"{name}.csv", index=False)
        nodes.append({"data-path": f"{folder}/{name}.csv", "name": name, "id-key": key})

    class Grid(InlineGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            spoil(reply)
            replies.append(message_to_proto(reply).SerializeToString())
            return reply

    words = {"engine": "inline", "task": "tables", "clients": 3, "id": "patient"}
    chosen = resolve(words)
    return hold(Grid(app, nodes, chosen.model_dump()), chosen, True), b"".join(replies)


def test_the_server_counts_ids_in_common_and_each_site_names_its_own_rows(tmp_path, caplog):
    found, _ = look(tmp_path, [KEY] * 3)
    said = [line for line in findings(found) if "ids in common" in line]
    assert ["a and b have 20 " in said[0], "a and c have fewer than 5 " in said[1]] == [True] * 2
    assert len(said) == 2
    logs = sorted(text for text in caplog.messages if "ids that other sites have" in text)
    assert [line.partition(" rows")[0].strip() for line in logs] == ["a: 21", "b: 20", "c: 2"]
    assert logs[2].endswith("too: 31, 32")


def test_a_server_without_the_key_can_tell_no_id(tmp_path):
    """Its bytes hold no id, nor a digest of one that is made without the key."""
    _, sent = look(tmp_path, [KEY] * 3)
    names = {name for ids in IDS.values() for name in ids}
    assert not any(name.encode() in sent for name in names) and KEY.encode() not in sent
    of_key = {hmac.digest(KEY.encode(), name.encode(), "sha256")[:8] for name in names}
    assert sum(digest in sent for digest in of_key) == len(of_key)  # the test reads what is there
    for other, how in itertools.product(("", "patient", KEY[:-1]), ("sha256", "sha1", "md5")):
        assert not any(hmac.digest(other.encode(), n.encode(), how)[:8] in sent for n in names)


@pytest.mark.parametrize("keys", [["", "", ""], [KEY, "", ""], [KEY, "another key of one", ""]])
def test_without_a_common_key_no_id_is_in_common(keys, tmp_path):
    found, _ = look(tmp_path, keys)
    assert not found.ids and not any("ids" in line for line in findings(found))


def test_a_site_that_makes_digests_up_is_left_out(tmp_path):
    def spoil(reply):
        for words in reply.content.config_records.values():
            if words.get("digests"):
                words["digests"] = bytes(words["digests"]) + b"1"

    assert not look(tmp_path, [KEY] * 3, spoil)[0].ids
