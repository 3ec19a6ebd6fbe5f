"""Hidden row numbers, sealed for the secondary, and digests of offered identifiers."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from fedsim.errors import PeerError
from fedsim.linkage.private_linkage import PrivateLinks
from fedsim.privacy.keyed_prng import derive_subkey
from fedsim.storage.digest import arrays_digest
from fedsim.types import EncodedTable

# Hidden rows: the primary asks by its own records, and only the secondary knows which of its rows are meant
#
# Every link gets a row number of its own, so no number repeats; the coordinator tells the secondary which row each
# stands for. For predictions, when coordinator and secondary do not speak, that list travels with the primary's
# question: sealed by AES-GCM under a key the primary does not have.
#
# Letters: n records, K partners.


SEAL_KEY_BYTES = 32
NONCE_BYTES = 12
NO_BYTES: NDArray[np.uint8] = np.zeros(0, np.uint8)


def number_links(delivery: PrivateLinks) -> PrivateLinks:
    """The same similarities with a row number of its own for every link.

    >>> number_links(PrivateLinks(np.array([[7, 3], [7, 1]], np.int32), np.zeros((2, 2), np.float32))).partner.tolist()
    [[0, 1], [2, 3]]
    """
    numbers = np.arange(delivery.partner.size, dtype=np.int32).reshape(delivery.partner.shape)
    return PrivateLinks(numbers, delivery.similarity)


def linked_rows(delivery: PrivateLinks, order: NDArray[Any]) -> NDArray[np.int32]:
    """The secondary's own row behind every number, (n K,)."""
    return np.asarray(order[delivery.partner].ravel(), dtype=np.int32)


def derive_seal_key(secret: bytes, partner_list: str) -> NDArray[np.uint8]:
    """The key that coordinator and secondary share for one list."""
    return np.frombuffer(derive_subkey(secret, f"seal of {partner_list}", SEAL_KEY_BYTES), np.uint8)


def seal_rows(key: NDArray[np.uint8], rows: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Rows that only the secondary can read; the same rows give the same bytes, and so the same noise."""
    plain = np.ascontiguousarray(rows, "<i4").tobytes()
    nonce = blake2b(plain, key=key.tobytes(), digest_size=NONCE_BYTES).digest()
    return np.frombuffer(nonce + AESGCM(key.tobytes()).encrypt(nonce, plain, None), np.uint8)


def unseal_rows(key: NDArray[np.uint8], closed: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The rows that were sealed; raises PeerError for anything else."""
    content = closed.tobytes()
    try:
        plain = AESGCM(key.tobytes()).decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        raise PeerError("the primary sent rows that the coordinator did not seal") from None
    return np.frombuffer(plain, "<i4").astype(np.int32)


# A short name for identifiers that were sent before, so that they need not be sent again


def offer_digest(table: EncodedTable, *beside: NDArray[Any]) -> str:
    """That of an encoded table, and of what is sent beside it."""
    return arrays_digest(np.frombuffer(table.fingerprint.encode(), np.uint8), table.bits, *beside)
