"""What crossed the border is counted, by whom, to whom, of what kind and in which part of the job."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from fedsim.protocol.messages import Activations, Ask, Hello, Ledger, LedgerEntry, Phase, Trouble, Want, merge_ledgers
from fedsim.protocol.transport import Envelope, encode
from message_fixtures import SMALL
from session_fixtures import CITY, NOTARY, RENTALS, joined, started

ROWS, REALS = np.arange(4, dtype=np.int32), np.zeros((4, 2), np.float32)


def small_ledger() -> Ledger:
    ledger = Ledger()
    ledger.count(Trouble("x", "y", False), CITY, NOTARY, 5)
    ledger.count(Activations(1, values=REALS), RENTALS, CITY, 100)
    ledger.count(Ask(1, rows=ROWS), CITY, RENTALS, 30)
    ledger.count(Ask(2, rows=ROWS), CITY, RENTALS, 12)
    ledger.count(Want(True), NOTARY, CITY, 7)
    return ledger


def test_messages_and_bytes_are_counted_in_the_order_of_the_job():
    assert small_ledger().entries() == [
        LedgerEntry("link", "want", "coordinator 'notary'", "primary 'city'", 1, 7),
        LedgerEntry("train", "activations", "secondary 'rentals'", "primary 'city'", 1, 100),
        LedgerEntry("train", "ask", "primary 'city'", "secondary 'rentals'", 2, 42),
        LedgerEntry("end", "trouble", "primary 'city'", "coordinator 'notary'", 1, 5),
    ]
    assert small_ledger().total_bytes == 154


def test_a_phase_may_be_said_where_the_message_does_not_say_it():
    ledger = Ledger()
    ledger.count(Ask(1, rows=ROWS), CITY, RENTALS, 30, Phase.PREDICT)
    ledger.count(Ask(1, rows=ROWS), CITY, RENTALS, 30)
    assert [entry.phase for entry in ledger.entries()] == ["train", "predict"]


def test_every_message_belongs_to_a_phase():
    ledger = Ledger()
    for message in SMALL.values():
        ledger.count(message, CITY, RENTALS, len(encode(Envelope(message))))
    assert {entry.phase for entry in ledger.entries()} <= set(Phase)
    assert len(ledger.entries()) == len(SMALL)


def test_a_ledger_tells_sizes_and_no_contents():
    ledger = Ledger()
    ledger.count(Hello("rentals", "secondary", "the whole job", "versions", "me", "", 0, 1.0), RENTALS, CITY, 9)
    (line,) = [asdict(entry) for entry in ledger.entries()]
    assert set(line) == {"phase", "kind", "sender", "receiver", "messages", "bytes"}
    assert "the whole job" not in repr(ledger.entries())


def test_many_threads_count_together():
    ledger = Ledger()
    joined(*[started(lambda: [ledger.count(Want(True), NOTARY, CITY, 2) for _ in range(500)]) for _ in range(8)])
    assert [(entry.messages, entry.bytes) for entry in ledger.entries()] == [(4000, 8000)]


def test_ledgers_of_both_ends_count_every_frame_once():
    assert merge_ledgers([small_ledger(), small_ledger()]) == small_ledger().entries()
    assert merge_ledgers([small_ledger(), Ledger()]) == small_ledger().entries()
