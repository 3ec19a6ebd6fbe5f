"""In a job without a coordinator, what is planted in the tables leaves in no byte, and no token leaves unblinded."""

from __future__ import annotations

import pytest

from e2e.party_threads import mutual_tls, run_in_threads
from fedsim.config.party_file import PartyFile
from fedsim.linkage.direct.oprf import SecretKey
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Evaluate
from fedsim.protocol.transport import decode
from fedsim_lab.faults.local_job import CITY, RENTALS, SCHOOLS, create_local_job
from privacy.test_canaries import Recorded, planted

TOKENS = {
    RENTALS: {
        "k": 3,
        "tokens": [{"columns": [name], "kind": "number", "width": 1e16, "levels": 12} for name in ("lat", "lon")],
    },
    SCHOOLS: {"k": 3, "tokens": [{"columns": ["district"], "kind": "text", "samples": 8}]},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The planted values, the job, and all frames of it."""
    canaries, tables = planted()
    folder, frames = tmp_path_factory.mktemp("canaries") / "job", []
    place = create_local_job(folder, n_secondaries=2, tables=tables, direct=True, secondaries=TOKENS)
    run_in_threads(place, lambda own: Recorded(mutual_tls(own), own.party, frames, [None] * 9))
    return list(canaries.values()), place, frames


def test_no_canary_is_in_any_frame_or_in_the_folder_of_another_party(run):
    canaries, place, frames = run
    assert {"table-part", "evaluate", "evaluated"} <= {decode(frame).message.kind for _, _, frame in frames}
    for sender, receiver, frame in frames:
        found = [each.in_bytes(frame) for each in canaries]
        assert not any(found), (sender, receiver, decode(frame).message.kind, found)
    for name, each in zip(("city", "rentals", "schools"), canaries, strict=True):
        others = [own for own in map(place.own, place.names) if own.name != name]
        kept = [path for own in others for path in sorted(own.folder.rglob("*")) if path.is_file()]
        assert not [path for path in kept if each.in_bytes(path.read_bytes())]


def values_of(place, own: PartyFile, key: SecretKey) -> set[bytes]:
    """What the oblivious function makes of the tokens of the primary's records."""
    table, terms = PartyData.read(place.job, own), place.job.secondaries[RENTALS]
    found = terms.token_schema.query_tokens(table.token_identifiers(RENTALS))
    inputs = [terms.token_schema.inputs(at, sorted(set(one.tokens.token.tolist()))) for at, one in enumerate(found)]
    return {value[:32] for field in inputs for value in key.evaluate(field)}


def test_neither_tokens_nor_their_values_nor_keys_are_in_any_frame(run):
    _, place, frames = run
    key = SecretKey(bytes.fromhex("0f" * 32))  # of these jobs
    secrets = {*list(values_of(place, place.own(CITY), key))[:50], key.scalar}
    for _, _, frame in frames:
        assert not [secret for secret in secrets if secret in frame]
    blinded = [decode(frame).message for _, _, frame in frames]
    points = [row.tobytes() for one in blinded if isinstance(one, Evaluate) for row in one.blinded]
    assert len(set(points)) == len(points)
