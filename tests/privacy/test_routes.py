"""The written list of what may leave: every message, who may send it to whom, and every field it has.

Whoever adds a message or a field adds it here too, and thereby says that it may leave an organisation. Identifiers in
the clear, features and labels are on no list; encoded identifiers go to the coordinator alone, row orders never to the
primary, similarities to nobody else, and tokens leave blinded only.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import product

import pytest

from fedsim.protocol.messages import KINDS, Party, Role
from fedsim.protocol.session import HANDSHAKE_MESSAGES
from fedsim.protocol.transport import LAYOUTS
from message_fixtures import SMALL
from session_fixtures import Notes, frame_of, read_all, session_of

ALL = "pc cp sc cs sp ps"  # p primary, s secondary, c coordinator; the sender first
MAY_LEAVE = {
    "hello": (ALL, "party role job versions instance resume received clock"),
    "welcome": (ALL, "session received versions clock"),
    "refusal": (ALL, "reason passing"),
    "trouble": (ALL, "origin reason passing"),
    "farewell": (ALL, ""),
    "notice": (ALL, "text"),
    "offer": ("pc sc", "partner_list digest have"),
    "want": ("cp cs", "wanted"),
    "candidates": ("sc", "partner_list fingerprint n_bits bits"),
    "queries": ("pc", "partner_list fingerprint n_bits bits counted"),
    "new-queries": ("pc", "partner_list fingerprint n_bits bits"),
    "partners": ("cp", "partner_list n_candidates partner similarity sealed"),
    "row-order": ("cs", "partner_list n_trained order seal"),
    "unchanged": ("cp cs", ""),
    "fetch-table": ("ps", "have start"),
    "table-part": ("sp", "digest size start content"),
    "evaluate": ("ps", "blinded"),
    "evaluated": ("sp", "elements proofs"),
    "meet": ("ps", "predicting"),
    "begin": ("ps", "total_steps study seed placebo"),
    "ready": ("sp", "width n_records"),
    "ask": ("ps", "step rows"),
    "activations": ("sp", "step values"),
    "gradients": ("ps", "step values"),
    "infer": ("ps", "rows sealed"),
    "embed": ("ps", "rows sealed"),
    "keep-best": ("ps", ""),
    "use-best": ("ps", ""),
    "save": ("ps", "step"),
    "restore": ("ps", "step"),
    "forget-before": ("ps", "step"),
    "done": ("sp cp cs", "fault"),
    "finish": ("ps pc", ""),
}
# Arrays are all that could hold a table; these are those there are, and what they may be made of.
ARRAYS = {
    ("candidates", "bits"): ("uint8",),
    ("queries", "bits"): ("uint8",),
    ("queries", "counted"): ("uint8",),
    ("new-queries", "bits"): ("uint8",),
    ("partners", "partner"): ("int32",),
    ("partners", "similarity"): ("float32",),
    ("partners", "sealed"): ("uint8",),
    ("row-order", "order"): ("int32",),
    ("row-order", "seal"): ("uint8",),
    ("table-part", "content"): ("uint8",),
    ("evaluate", "blinded"): ("uint8",),
    ("evaluated", "elements"): ("uint8",),
    ("evaluated", "proofs"): ("uint8",),
    ("ask", "rows"): ("int32",),
    ("infer", "rows"): ("int32",),
    ("infer", "sealed"): ("uint8",),
    ("embed", "rows"): ("int32",),
    ("embed", "sealed"): ("uint8",),
    ("activations", "values"): ("float32", "float16", "int16", "int8"),
    ("gradients", "values"): ("float32", "float16", "int16", "int8"),
}
UNSPEAKABLE = {"identifier", "identifiers", "label", "labels", "feature", "features", "key", "secret", "scale", "sigma"}
LETTERS = {role.value[0]: role for role in Role}


def routes_of(kind: str) -> set[tuple[Role, Role]]:
    return {(LETTERS[sender], LETTERS[receiver]) for sender, receiver in MAY_LEAVE[kind][0].split()}


def test_the_list_has_every_message_and_no_other():
    assert set(MAY_LEAVE) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_has_the_fields_and_routes_of_the_list(kind):
    assert [entry.name for entry in fields(KINDS[kind])] == MAY_LEAVE[kind][1].split()
    assert set(KINDS[kind].routes) == routes_of(kind)


def test_the_arrays_that_cross_are_those_of_the_list():
    found = {(kind, name): shape.dtypes for kind, layout in LAYOUTS.items() for name, shape in layout.arrays.items()}
    assert found == ARRAYS


def test_no_field_is_named_for_what_must_stay():
    named = {word for kind in KINDS.values() for entry in fields(kind) for word in entry.name.split("_")}
    assert not named & UNSPEAKABLE


def test_what_only_one_may_see_goes_to_nobody_else():
    encoded = [routes_of(kind) for kind in ("candidates", "queries", "new-queries")]
    assert {receiver for routes in encoded for _, receiver in routes} == {Role.COORDINATOR}
    assert {receiver for _, receiver in routes_of("row-order")} == {Role.SECONDARY}
    assert {receiver for _, receiver in routes_of("partners")} == {Role.PRIMARY}


@pytest.mark.parametrize(("sender", "receiver"), list(product(Role, Role)))
def test_a_session_takes_what_this_sender_may_send_to_this_receiver_and_nothing_else(sender, receiver):
    refused = []
    for kind, message in SMALL.items():
        session = session_of(Party(receiver, "here"), Party(sender, "there"))
        read_all(session, frame_of(message))
        may = (sender, receiver) in routes_of(kind) and type(message) not in HANDSHAKE_MESSAGES
        assert (session.received == 1) is may
        assert (session.connection.record_event == []) is may
        refused += [] if may else session.connection.record_event
    assert {what for what, _ in refused} == {"line dropped"}
    assert all(facts["peer"] == f"{sender} 'there'" for _, facts in refused)


def test_who_sends_what_it_may_not_is_named_in_the_log():
    session = session_of(Party(Role.PRIMARY, "city"), Party(Role.COORDINATOR, "notary"))
    read_all(session, frame_of(SMALL["row-order"]))
    reason = "a coordinator may not send 'row-order' to a primary"
    assert session.connection.record_event == Notes(
        [("line dropped", {"peer": "coordinator 'notary'", "reason": reason})]
    )
    assert not session.connected
