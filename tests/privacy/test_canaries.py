"""What is planted in the tables leaves in no byte: frames, logs, errors, reprs, other parties' folders."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections import Counter, deque
from contextlib import suppress

import numpy as np
import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.party_threads import mutual_tls, run_in_threads
from fedsim.errors import FedSimError
from fedsim.protocol.messages import KINDS, Role
from fedsim.protocol.transport import decode
from fedsim.runtime.run_local import run_local
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, SCHOOLS, create_local_job, free_ports
from fedsim_ops.telemetry import JsonLogFormatter
from privacy.canaries import Canaries
from telemetry_fixtures import scrape

FLATS, LODGINGS, CLASSES = 150, 120, 60
TELLING = {"candidates", "queries", "activations", "gradients"}  # when these are sent, all data is in memory
P, S, C = Role.PRIMARY, Role.SECONDARY, Role.COORDINATOR
ALWAYS = {"hello", "welcome", "refusal", "trouble", "farewell", "notice"}
# Who may see what, written out once more: this table changes only when the design does.
ALLOWED = {
    (P, C): ALWAYS | {"offer", "queries", "finish", "new-queries"},
    (S, C): ALWAYS | {"offer", "candidates"},
    (C, P): ALWAYS | {"want", "partners", "unchanged", "done"},
    (C, S): ALWAYS | {"want", "row-order", "unchanged"},
    (P, S): ALWAYS
    | {"meet", "begin", "ask", "gradients", "infer", "keep-best", "use-best", "save", "restore", "forget-before"}
    | {"finish"},
    (S, P): ALWAYS | {"ready", "activations", "done"},
}


class Recorded:
    """A transport that keeps every frame it sends, with the sender and the receiver."""

    def __init__(self, transport, sender, frames, reprs):
        self.transport, self.sender, self.frames, self.reprs = transport, sender, frames, reprs

    def listen(self, address, answer):
        return self.transport.listen(address, lambda caller, line: answer(caller, RecordedLine(line, caller, self)))

    def dial(self, address, peer):
        return RecordedLine(self.transport.dial(address, peer), peer, self)


class RecordedLine:
    def __init__(self, line, peer, record):
        self.line, self.peer, self.record = line, peer, record
        self.receive, self.close = line.receive, line.close

    def send(self, frame):
        record = self.record
        self.line.send(frame)
        record.frames.append((record.sender, self.peer, frame))
        if decode(frame).message.kind in TELLING and len(record.reprs) < 9:
            record.reprs.append(reprs_of_everything())


def reprs_of_everything():
    """How all our objects that any function holds just now would show in a log or a debugger."""
    seen, found, left = set(), [], [value for frame in every_frame() for value in frame.f_locals.values()]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            is_ours = str(type(one).__module__).startswith("fedsim.")
            with suppress(RuntimeError, AttributeError):  # another thread builds or changes it just now
                left += inside(one, is_ours)
                found += [repr(one)] if is_ours else []
    return "\n".join(found)


def every_frame():
    for top in sys._current_frames().values():
        yield from (frame for frame, _ in traceback.walk_stack(top))


def inside(one, is_ours):
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, list | tuple | set | frozenset | deque):
        return list(one)
    return list(vars(one).values()) if is_ours and hasattr(one, "__dict__") else []


def planted():
    """Tables full of canaries: identifiers, features and labels, as numbers and as words."""
    rng = np.random.default_rng(11)
    own = {name: Canaries(rng) for name in (CITY, RENTALS, SCHOOLS)}
    city, rentals, schools = own.values()
    words = city.draw_words(20), schools.draw_words(20)
    tables = {
        CITY: pl.DataFrame(
            {
                **{column: city.draw_numbers(FLATS) for column in ("lat", "lon", "area", "price")},
                "built": city.draw_wholes(FLATS),
                "owner": (words[0] * FLATS)[:FLATS],
                "quarter": city.draw_words(FLATS),
            }
        ),
        RENTALS: pl.DataFrame(
            {
                **{column: rentals.draw_numbers(LODGINGS) for column in ("lat", "lon", "rent")},
                "licence": rentals.draw_wholes(LODGINGS),
            }
        ),
        SCHOOLS: pl.DataFrame(
            {
                "district": schools.draw_words(CLASSES),
                "grade": schools.draw_numbers(CLASSES),
                "kind": (words[1] * CLASSES)[:CLASSES],
            }
        ),
    }
    return own, tables


def lay_out_planted(folder, tables):
    encoding = {"kind": "numeric", "low": 2e18, "high": 9.3e18, "threshold": 3e17}
    fields = [{"column": column, "encoding": encoding} for column in ("lat", "lon")]
    schema = {"version": 1, "fields": fields}
    return create_local_job(folder, n_secondaries=2, tables=tables, secondaries={RENTALS: {"schema": schema}})


class Watched:
    """Everything that every party exports about itself while the block runs."""

    def __init__(self, place):
        self.place, self.addresses, self.scraped, self.over = place, {}, [], threading.Event()

    def __enter__(self):
        for name, port in zip(self.place.names, free_ports(), strict=False):
            self.addresses[name] = f"127.0.0.1:{port}"
            self.place.change_party(name, telemetry={"metrics": self.addresses[name]})
        self.thread = threading.Thread(target=self.scrape_until_over)
        self.thread.start()
        return self

    def scrape_until_over(self):
        while not self.over.wait(0.3):
            self.scraped += [(name, text) for name, where in self.addresses.items() if (text := scrape(where))]

    def __exit__(self, *ended):
        self.over.set()
        self.thread.join()


class Run:
    """A whole job over gRPC with mutual TLS, and all that could be seen of it."""

    def __init__(self, folder):
        self.canaries, tables = planted()
        self.place = lay_out_planted(folder, tables)
        self.frames, self.reprs = [], []
        with Watched(self.place) as self.watched:
            self.ledgers = run_in_threads(
                self.place, lambda own: Recorded(mutual_tls(own), own.party, self.frames, self.reprs)
            )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs once; ``said`` is everything that was logged at any level or printed."""
    records, lines = [], []
    handler, as_json = logging.Handler(), JsonLogFormatter("5e" * 32)
    handler.emit = lambda record: (records.append(handler.format(record)), lines.append(as_json.format(record)))
    root, ours = logging.getLogger(), logging.getLogger("fedsim")
    levels = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    ours.setLevel(logging.DEBUG)
    try:
        found = Run(tmp_path_factory.mktemp("canaries") / "job")
    finally:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
    found.log_text = "\n".join([*records, *lines])
    assert all(json.loads(line)["job"] == "5e5e5e5e5e5e" for line in lines)
    return found


def everybodys(run):
    return list(run.canaries.values())


def contents(folder):
    """Of every file, by name; what was written is not mixed."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_thousand_canaries_are_planted_and_would_be_found(run):
    assert sum(map(len, everybodys(run))) > 1000
    for name, canaries in run.canaries.items():
        assert (
            {"a word", "a number as text"}
            >= canaries.in_bytes((run.place.folder / f"{name}.csv").read_bytes())
            != set()
        )
        for kind in ("<f8", ">f8", "<f4", ">f4"):
            assert canaries.in_bytes(b"12345678" + np.array(canaries.numbers[:3], kind).tobytes())
        for kind in ("<i8", ">i8", "<f8"):
            assert not canaries.wholes or canaries.in_bytes(b"123" + np.array(canaries.wholes[:3], kind).tobytes())


def test_no_canary_is_in_any_frame(run):
    assert len(run.frames) > 200
    for sender, receiver, frame in run.frames:
        found = [canaries.in_bytes(frame) for canaries in everybodys(run)]
        assert not any(found), (sender, receiver, decode(frame).message.kind, found)


def test_no_canary_is_in_any_log_line_at_any_level(run):
    audits = b"".join((run.place.own(name).folder / "audit.jsonl").read_bytes() for name in run.place.names)
    for canaries in everybodys(run):
        assert not canaries.in_bytes(run.log_text.encode())
        assert not canaries.in_bytes(audits)


def test_no_canary_is_in_any_exported_byte(run):
    watched = run.watched
    assert {name for name, _ in watched.scraped} == set(run.place.names)
    for canaries in everybodys(run):
        assert not [name for name, text in watched.scraped if canaries.in_bytes(text)]


def test_labels_have_few_values_none_of_them_from_a_table(run):
    kinds, phases = set(KINDS), {"join", "link", "train", "explain", "end", "wait", "serve"}
    columns = {"lat", "lon", "area", "built", "owner", "quarter", "rent", "licence", "district", "grade"}
    for text in dict(run.watched.scraped).values():  # the last of each party
        families = list(text_string_to_metric_families(text.decode()))
        labels = [pair for family in families for sample in family.samples for pair in sample.labels.items()]
        assert {value for label, value in labels if label == "kind"} <= kinds
        assert {value for label, value in labels if label == "phase"} <= phases
        assert not columns & {value for _, value in labels}
        assert sum(len(family.samples) for family in families) < 400


def test_no_canary_is_in_the_repr_of_anything_of_ours(run):
    assert all(word in "".join(run.reprs) for word in ("PartyData(", "EncodedTable(", "PrimaryData(", "Features("))
    shown = "\n".join([*run.reprs, *(repr(decode(frame)) for _, _, frame in run.frames)]).encode()
    for canaries in everybodys(run):
        assert not canaries.in_bytes(shown)


def test_the_coordinator_keeps_no_canary(run):
    kept = contents(run.place.own(NOTARY).folder)
    assert "linked.safetensors" in kept
    for canaries in everybodys(run):
        assert not [name for name, content in kept.items() if canaries.in_bytes(content)]


@pytest.mark.parametrize("name", [CITY, RENTALS, SCHOOLS])
def test_a_party_keeps_no_canary_of_another(run, name):
    kept = contents(run.place.own(name).folder)
    assert "tensors.safetensors" in kept
    for canaries in (found for other, found in run.canaries.items() if other != name):
        assert not [file for file, content in kept.items() if canaries.in_bytes(content)]


def test_only_messages_of_the_table_were_sent_and_the_ledgers_count_them_all(run):
    sent = [(sender, receiver, decode(frame).message.kind) for sender, receiver, frame in run.frames]
    assert all(kind in ALLOWED[sender.role, receiver.role] for sender, receiver, kind in sent)
    for name, ledger in run.ledgers.items():
        own = str(run.place.own(name).party)
        counted: Counter[tuple[str, str]] = Counter()
        for entry in ledger:
            counted[entry.receiver, entry.kind] += entry.messages * (entry.sender == own)
        seen = Counter((str(receiver), kind) for sender, receiver, kind in sent if sender.name == name)
        assert {pair for pair in seen if pair[1] == "hello"} == {pair for pair in +counted if pair[1] == "hello"}
        for count in (counted, seen):  # a greeting on a line that broke at once is dialled again
            for pair in [pair for pair in count if pair[1] == "hello"]:
                del count[pair]
        assert +counted == seen


@pytest.mark.parametrize(("name", "column"), [(CITY, "price"), (CITY, "lat"), (RENTALS, "lon")])
def test_an_error_in_a_table_shows_no_canary_not_even_to_its_owner(name, column, tmp_path, caplog):
    owners, tables = planted()
    cells = [str(cell) for cell in tables[name][column]]
    cells[7], cells[8] = owners[name].draw_words(2)
    tables[name] = tables[name].with_columns(pl.Series(column, cells))
    place = lay_out_planted(tmp_path / "job", tables)
    with pytest.raises(FedSimError, match=column) as fault, caplog.at_level(logging.DEBUG):
        run_local(place.job, [place.own(each) for each in place.names])
    shown = "".join(traceback.format_exception(fault.value)) + caplog.text
    assert not any(canaries.in_bytes(shown.encode()) for canaries in owners.values())
