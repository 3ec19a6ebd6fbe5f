"""Hidden rows: the primary asks by its own records, and only the secondary knows which of its rows are meant.

Every link gets a row number of its own, so no number repeats; the coordinator tells the secondary which row each stands
for. For predictions, when coordinator and secondary do not speak, that list travels with the primary's question: sealed
by AES-GCM under a key the primary does not have.

Letters: n records, K partners.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from fedsim.errors import PeerError
from fedsim.linkage.blind import Delivery
from fedsim.privacy.keyed import subkey

KEY_BYTES = 32
NONCE_BYTES = 12
NOTHING: NDArray[np.uint8] = np.zeros(0, np.uint8)


def numbered(delivery: Delivery) -> Delivery:
    """The same similarities with a row number of its own for every link.

    >>> numbered(Delivery(np.array([[7, 3], [7, 1]], np.int32), np.zeros((2, 2), np.float32))).partner.tolist()
    [[0, 1], [2, 3]]
    """
    numbers = np.arange(delivery.partner.size, dtype=np.int32).reshape(delivery.partner.shape)
    return Delivery(numbers, delivery.similarity)


def rows_behind(delivery: Delivery, order: NDArray[Any]) -> NDArray[np.int32]:
    """The secondary's own row behind every number, (n K,)."""
    return np.asarray(order[delivery.partner].ravel(), dtype=np.int32)


def seal_key(secret: bytes, partner_list: str) -> NDArray[np.uint8]:
    """The key that coordinator and secondary share for one list."""
    return np.frombuffer(subkey(secret, f"seal of {partner_list}", KEY_BYTES), np.uint8)


def sealed(key: NDArray[np.uint8], rows: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Rows that only the secondary can read; the same rows give the same bytes, and so the same noise."""
    plain = np.ascontiguousarray(rows, "<i4").tobytes()
    nonce = blake2b(plain, key=key.tobytes(), digest_size=NONCE_BYTES).digest()
    return np.frombuffer(nonce + AESGCM(key.tobytes()).encrypt(nonce, plain, None), np.uint8)


def unsealed(key: NDArray[np.uint8], closed: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The rows that were sealed; raises PeerError for anything else."""
    content = closed.tobytes()
    try:
        plain = AESGCM(key.tobytes()).decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        raise PeerError("the primary sent rows that the coordinator did not seal") from None
    return np.frombuffer(plain, "<i4").astype(np.int32)
