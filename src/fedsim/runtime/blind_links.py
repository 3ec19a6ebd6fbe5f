"""Links of the primary under a blind coordinator: made together with a secondary, scaled and stored here."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from fedsim.errors import FileError
from fedsim.linkage.blind_linkage import scale_links
from fedsim.linkage.private_linkage import PrivateLinks, load_private_links, save_private_links
from fedsim.protocol.messages import Partners, Party
from fedsim.protocol.roles.blind_primary import BlindRequest, VectorCache
from fedsim.protocol.session import PeerRestarted, Session
from fedsim.protocol.transport import NO_BYTES
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer
from fedsim.runtime.party_data import RunStore
from fedsim.storage.files import atomic_write
from fedsim.types import EncodedTable, Flags, Scale

log = logging.getLogger("fedsim.parties")


def load_or_link_blindly(
    context: PartyContext,
    party: Party,
    peers: tuple[ReconnectingPeer, ReconnectingPeer],
    encoded: EncodedTable,
    counted: Flags,
) -> PrivateLinks:
    """Return the partners of every record; ``peers`` are the coordinator and the secondary.

    An interrupted linkage continues with the first tile that was not opened.
    """
    store, (coordinator, secondary) = RunStore.of(context), peers
    path = _links_path(context.folder, party.name)
    tiles, terms = path.with_suffix(""), context.job.secondaries[party.name].linkage
    cache = VectorCache(context.folder)
    request = BlindRequest(party.name, terms, encoded, store.secret, counted, folder=tiles, cache=cache)
    coordinator.ask(request.offer)  # refuses a changed table
    with suppress(FileError):
        if _load_facts(path)["digest"] == request.digest and path.is_file():
            return load_private_links(path)
    while True:
        try:
            progress = partial(context.progress.link, party.name)
            found = request.link(coordinator.session(), secondary.session(), progress)
            break
        except PeerRestarted as restarted:
            log.info("%s; continuing with the first tile that was not opened", restarted)
    scale, links = scale_links(found.partner, found.distance, found.place, counted=counted, scale=None)
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"digest": request.digest, "mean": scale.mean.hex(), "deviation": scale.deviation.hex()}
    with atomic_write(_facts_path(path), mode=0o600) as part:
        part.write_text(json.dumps(facts))
    save_private_links(links, path)
    shutil.rmtree(tiles, ignore_errors=True)
    return links


def link_new_blindly(
    context: PartyContext, name: str, sessions: tuple[Session, Session], encoded: EncodedTable, cache: VectorCache
) -> Partners:
    """Return the partners of new records under the scale of training; ``sessions`` as in load_or_link_blindly."""
    terms, secret = context.job.secondaries[name].linkage, RunStore.of(context).secret
    facts = _load_facts(_links_path(context.folder, name))
    scale = Scale(float.fromhex(facts["mean"]), float.fromhex(facts["deviation"]))
    found = BlindRequest(name, terms, encoded, secret, cache=cache).link(*sessions)
    _, links = scale_links(found.partner, found.distance, found.place, counted=None, scale=scale)
    partner = np.asarray(links.partner, np.int32)
    return Partners(name, found.n_records, partner=partner, similarity=links.vectors, sealed=NO_BYTES)


def _links_path(folder: Path, name: str) -> Path:
    return folder / "lists" / f"{name}.safetensors"


def _facts_path(links: Path) -> Path:
    return links.with_suffix(".json")


def _load_facts(links: Path) -> dict[str, str]:
    path = _facts_path(links)
    try:
        facts = json.loads(path.read_text())
        return {name: str(facts[name]) for name in ("digest", "mean", "deviation")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"cannot read {path}; train the job first", code="damaged-file") from error
