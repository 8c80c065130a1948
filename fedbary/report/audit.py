"""The audit of a run: the server's record beside the sites' own, and a digest of its folder."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbary.data.forms import content_of
from fedbary.errors import SettingError
from fedbary.runs.location import CLIENTS, LOCK, RECORD, as_written, read_rounds
from fedbary.runs.record import SITE_RECORDS, read_record
from fedbary.runs.schema import REFUSED, ROUND
from fedbary.texts import SCREEN, one_line

MOST = 20
"""Lines of a kind that are printed one by one."""

Event = Mapping[str, Any]


@dataclass
class Exchange:
    """A message of the server's record, and what came of it: an answer, an error or nothing."""

    asked: Event
    came: Event = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """Flower's run and the node."""
        return self.asked["run"], self.asked["node"]

    def fits(self, told: Event) -> bool:
        """Return whether a site's line is of such a message: its kind, round and question."""
        words = ("run", "node", "kind", "round", "question")
        return all(self.asked.get(word) == told.get(word) for word in words)

    def differences(self, told: Event) -> Iterator[str]:
        """Yield in what a site's line differs."""
        asked = ("numbers", "bytes")
        sides: list[tuple[Event, Event, str, Sequence[str]]]
        sides = [(self.asked, told["asked"], "was asked", asked)]
        if ("answered" in told) != (self.came["event"] == "answered"):
            ours, theirs = "an answer", "an error"
            if "answered" in told:
                ours, theirs = theirs, ours
            yield f"the server has {ours}, the site {theirs}"
        elif "answered" in told:
            sides.append((self.came, told["answered"], "sent", (*asked, "digest")))
        for server, site, verb, names in sides:
            for name in names:
                if server.get(name) != site.get(name):
                    ours, theirs = (str(side.get(name))[:16] for side in (server, site))
                    yield f"{name} that it {verb}: {ours} at the server, {theirs} at the site"


def audit(run: Path, records: Sequence[Path]) -> tuple[list[str], bool]:
    """Return the lines of an audit of a run, and whether both sides agree.

    Parameters
    ----------
    run
        The run's folder.
    records
        Sites' records, or their folders of state; none: those that lie in the run's folder.

    Raises
    ------
    SettingError
        If a record is missing, or is none.
    """
    with as_written(run):
        events, damaged = read_record(run / RECORD)
        exchanges = exchanges_of(events)
        names = names_of(events)
        lines = [*_who(events), *_sites(events), *_rounds(exchanges)]
        lines += _traffic(traffic(exchanges, names))
        lines += refusals(run, events, names)
        files = [file for place in records for file in _files(place)]
        files = files or sorted(run.glob(f"{CLIENTS}/*/{SITE_RECORDS}/*.jsonl"))
        lines.append("")
        agrees = True
        for file in files:
            told, cut = read_record(file)
            damaged += cut
            said, faults = compared(exchanges, told)
            agrees &= not faults
            lines += [one_line(f"{file}: {said}", SCREEN), *_few(faults)]
        if not files:
            lines.append("No site's record is here: name them after RUN")
        if damaged:
            lines.append(f"{damaged} lines of the records cannot be read: cut off, or changed")
        count, digest = digest_of_folder(run)
        lines.append(f"sha256 {digest}  {count} files of {run}")
    return lines, agrees


def exchanges_of(events: Sequence[Event]) -> list[Exchange]:
    """Return the messages of a server's record, each with what came of it."""
    found: list[Exchange] = []
    open_: dict[int, Exchange] = {}
    for event in events:
        if event["event"] == "start":
            open_ = {}  # a run that goes on numbers its messages anew
        elif event["event"] == "asked":
            found.append(Exchange(event))
            open_[event["number"]] = found[-1]
        elif event["event"] in ("answered", "error") and event["number"] in open_:
            open_.pop(event["number"]).came = event
    return found


def names_of(events: Sequence[Event]) -> dict[tuple[str, str], str]:
    """Return the sites' names in a server's record, by Flower's run and the node."""
    return {(e["run"], e["node"]): str(e["site"].get("name")) for e in events if "site" in e}


def compared(exchanges: Sequence[Exchange], told: Sequence[Event]) -> tuple[str, list[str]]:
    """Compare a site's record with the server's; return the result in a line, and the faults."""
    runs = {exchange.asked["run"] for exchange in exchanges}
    lines = [line for line in told if line["event"] == "message" and line["run"] in runs]
    if not lines:
        return "no message of this run", ["it has no message of this run"]
    by_id = defaultdict(list)
    for exchange in exchanges:
        by_id[(*exchange.key, exchange.came.get("id"))].append(exchange)
    faults, open_ = [], [exchange for exchange in exchanges if not exchange.came]
    found: set[int] = set()
    agreeing = lost = 0
    for line in lines:
        key = line["run"], line["node"], line["id"]
        matches = [each for each in by_id[key] if id(each) not in found]
        matches.sort(key=lambda each: len([*each.differences(line)]))  # inline, ids begin anew
        if matches and matches[0].fits(line):
            found.add(id(matches[0]))
            differ = [*matches[0].differences(line)]
            faults += [f"{_called(line)}: {said}" for said in differ]
            agreeing += not differ
        elif (silent := next((each for each in open_ if each.fits(line)), None)) is not None:
            open_.remove(silent)
            lost += 1
        else:
            faults.append(f"{_called(line)}: the server's record has no such message")
    keys = {(line["run"], line["node"]) for line in lines}
    for exchange in exchanges:
        of_site = exchange.key in keys and id(exchange) not in found
        if of_site and exchange.came.get("event") == "answered":
            faults.append(f"{_called(exchange.asked)}: the site's record has no such message")
    said = f"{agreeing} messages agree, {len(faults)} differences"
    return said + (f", {lost} never reached the server" if lost else ""), faults


def digest_of_folder(run: Path) -> tuple[int, str]:
    """Return the number of a run's files, and the SHA-256 of their sorted paths and SHA-256.

    Logs, locks and half-written files do not count.
    """
    found, files = hashlib.sha256(), []
    for file in run.rglob("*"):
        if file.is_file() and file.name != LOCK and file.suffix not in (".log", ".partial"):
            files.append(file.relative_to(run).as_posix())
    for name in sorted(files):
        digest = hashlib.sha256(content_of(run / name)).hexdigest()
        found.update(f"{digest}  {name}\n".encode())
    return len(files), found.hexdigest()


def _who(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        if event["event"] == "start":
            versions = ", ".join(f"{name} {number}" for name, number in event["versions"].items())
            by = f"{event['time']}  {event['user']} at {event['host']} started Flower's run"
            yield f"{by} {event['run']}, code {event['code']}, {versions}"
        elif event["event"] in ("resumed", "stopped", "end"):
            more = [f"{k} {event[k]}" for k in ("round", "reason") if k in event]
            yield "  ".join([event["time"], event["event"], *more])
    if events and events[-1]["event"] not in ("end", "stopped"):
        yield f"{events[-1]['time']}  the last line: the run was killed, or goes on"


def _sites(events: Sequence[Event]) -> Iterator[str]:
    starts = [event for event in events if event["event"] == "start"]
    code, ours = {event["code"] for event in starts}, dict(starts[0]["versions"]) if starts else {}
    for event in events:
        if "code" in (site := event.get("site", {})):
            same = "the server's code" if site["code"] in code else f"other code, {site['code']}"
            data = f"data {site['content']}" if site.get("content") else "no digest of its data"
            try:
                pairs = json.loads(site["versions"]).items()
                other = [f"{name} {number}" for name, number in pairs if ours.get(name) != number]
                versions = ", ".join(other) or "the server's versions"
            except (ValueError, KeyError, AttributeError, RecursionError):
                versions = "no versions"
            said = f"{site.get('name')} (node {event['node']}): {data}, {same}, {versions}"
            yield one_line(f"{event['time']}  {said}", SCREEN)


def _rounds(exchanges: Sequence[Exchange]) -> Iterator[str]:
    times: dict[Any, list[str]] = defaultdict(list)
    for exchange in exchanges:
        if (number := exchange.asked.get("round")) is not None:
            came = exchange.came.get("time", exchange.asked["time"])
            times[number] += [exchange.asked["time"], came]
    for number, of_round in sorted(times.items()):
        yield f"round {number}: {min(of_round)} to {max(of_round)}"


def traffic(
    exchanges: Sequence[Exchange], names: Mapping[Any, str]
) -> dict[tuple[str, str], Counter[str]]:
    """Return the sums of each site's messages of a kind, by the site's name and the kind.

    The sums are of ``messages``, of those that were ``answered``, ended in an ``error`` or stayed
    ``silent``, and of ``numbers`` and ``bytes``, ``to it`` and ``from it``.
    """
    totals: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for each in exchanges:
        kind = " ".join(filter(None, [each.asked["kind"], each.asked.get("question")]))
        total = totals[names.get(each.key, f"node {each.asked['node']}"), kind]
        total["messages"] += 1
        total[each.came.get("event", "silent")] += 1
        for way, side in (("to it", each.asked), ("from it", each.came)):
            for what in ("numbers", "bytes"):
                total[f"{what} {way}"] += side.get(what, 0)
    return dict(sorted(totals.items()))


def _traffic(totals: Mapping[tuple[str, str], Counter[str]]) -> Iterator[str]:
    for (name, kind), total in totals.items():
        rest = "".join(f", {total[k]} {k}" for k in ("error", "silent") if total[k])
        yield one_line(
            f"{name}: {kind}, {total['messages']} messages{rest}; to it {total['numbers to it']:,}"
            f" numbers in {total['bytes to it']:,} bytes; from it {total['numbers from it']:,}"
            f" numbers in {total['bytes from it']:,} bytes",
            SCREEN,
        )


def refusals(run: Path, events: Sequence[Event], names: Mapping[Any, str]) -> list[str]:
    """Return the sites' errors, the nodes left out and the replies refused, with reasons."""
    found = []
    for event in events:
        if event["event"] in ("error", "left out"):
            called = names.get((event["run"], event["node"]), f"node {event['node']}")
            found.append(f"{event['time']}  {event['event']}, {called}: {event['reason']}")
    for line in read_rounds(run):
        found += [f"round {line[ROUND]}, reply refused: {why}" for why in line.get(REFUSED, ())]
    return [one_line(said, SCREEN) for said in found]


def _files(place: Path) -> list[Path]:
    found = sorted((place / SITE_RECORDS).glob("*.jsonl")) if place.is_dir() else [place]
    if not found:
        raise SettingError("RECORD", str(place), "a site's record, or its state-path")
    return found


def _few(faults: Sequence[str]) -> list[str]:
    more = [f"  and {len(faults) - MOST} more"] if len(faults) > MOST else []
    return [one_line(f"  {fault}", SCREEN) for fault in faults[:MOST]] + more


def _called(line: Event) -> str:
    number = f" of round {line['round']}" if "round" in line else ""
    return " ".join(filter(None, [f"{line['kind']}{number}", line.get("question")]))
