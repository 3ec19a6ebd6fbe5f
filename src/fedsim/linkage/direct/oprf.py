"""The oblivious pseudorandom function of RFC 9497 with ristretto255 and SHA-512.

The holder of a key evaluates blinded inputs without learning them, and proves for a batch at a time that it used the
key of its public key for all of them. The group is libsodium's (through rbcl); there is no curve arithmetic here.
libsodium's functions run outside the interpreter's lock, so batches are worked on by threads.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fedsim.errors import SettingError, WireError
from fedsim.registry import LazyModule

if TYPE_CHECKING:
    import rbcl
else:
    rbcl = LazyModule("rbcl")

ELEMENT_BYTES = SCALAR_BYTES = 32
PROOF_BYTES = 2 * SCALAR_BYTES
OUTPUT_BYTES = 64
MAX_BATCH = 1024  # inputs per proof; the RFC allows 65,535
ROUND_TOKENS = 1 << 16  # inputs sent at a time; what was received is kept if the next round fails
BASE, VERIFIABLE = 0, 1  # modes of the RFC
_BLOCK_BYTES = 128  # of SHA-512
_ONE = (1).to_bytes(SCALAR_BYTES, "little")


def _context(mode: int) -> bytes:
    return b"OPRFV1-" + bytes([mode]) + b"-ristretto255-SHA512"


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(2, "big") + part


def _expand(message: bytes, label: bytes) -> bytes:
    """Return 64 uniform bytes: ``expand_message_xmd`` of RFC 9380 with SHA-512."""
    tail = label + bytes([len(label)])
    first = hashlib.sha512(bytes(_BLOCK_BYTES) + message + b"\x00\x40\x00" + tail).digest()
    return hashlib.sha512(first + b"\x01" + tail).digest()


def _hash_to_group(message: bytes, mode: int) -> bytes:
    return bytes(rbcl.crypto_core_ristretto255_from_hash(_expand(message, b"HashToGroup-" + _context(mode))))


def _hash_to_scalar(message: bytes, mode: int, label: bytes = b"HashToScalar-") -> bytes:
    return bytes(rbcl.crypto_core_ristretto255_scalar_reduce(_expand(message, label + _context(mode))))


def _multiply(scalar: bytes, element: bytes) -> bytes:
    """Return a multiple of an element; refuse what is no element, and the identity."""
    try:
        return bytes(rbcl.crypto_scalarmult_ristretto255(scalar, element))
    except (RuntimeError, ValueError, TypeError) as error:  # what the library raises for all of these
        message = "32 bytes of an evaluation are not an element of ristretto255; the other party's release may differ"
        raise WireError(message, code="not-an-element") from error


def _add(left: bytes, right: bytes) -> bytes:
    try:
        return bytes(rbcl.crypto_core_ristretto255_add(left, right))
    except (RuntimeError, ValueError, TypeError) as error:
        message = "32 bytes of an evaluation are not an element of ristretto255; the other party's release may differ"
        raise WireError(message, code="not-an-element") from error


def _check_scalar(scalar: bytes) -> bytes:
    """Refuse a scalar that is not fully reduced."""
    if rbcl.crypto_core_ristretto255_scalar_reduce(scalar + bytes(SCALAR_BYTES)) != scalar:
        raise WireError("a proof holds a scalar that is not reduced; the evaluation is refused", code="bad-proof")
    return scalar


@dataclass(frozen=True)
class SecretKey:
    """A key of the function; ``repr`` never shows it.

    Examples
    --------
    >>> key = SecretKey.generate()
    >>> key, len(key.public)
    (SecretKey(secret), 32)
    """

    scalar: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.scalar) != SCALAR_BYTES or not any(self.scalar):
            raise SettingError("a key of oblivious evaluation is a scalar of 32 bytes, not 0", code="bad-key")

    def __repr__(self) -> str:
        return "SecretKey(secret)"

    @classmethod
    def generate(cls) -> SecretKey:
        """Return a new random key."""
        return cls(rbcl.crypto_core_ristretto255_scalar_random())

    @classmethod
    def derive(cls, seed: bytes, info: bytes, mode: int = VERIFIABLE) -> SecretKey:
        """Return the key that a seed of 32 random bytes determines (``DeriveKeyPair``)."""
        for counter in range(256):
            scalar = _hash_to_scalar(seed + _sized(info) + bytes([counter]), mode, b"DeriveKeyPair")
            if any(scalar):
                return cls(scalar)
        raise SettingError("no key follows from this seed; give another", code="bad-key")

    @property
    def public(self) -> bytes:
        """The public key, with which proofs are verified."""
        return bytes(rbcl.crypto_scalarmult_ristretto255_base(self.scalar))

    def evaluate(self, inputs: Iterable[bytes], mode: int = VERIFIABLE) -> list[bytes]:
        """Return the function's values of inputs that are known to the holder of the key."""
        return [_output(text, _multiply(self.scalar, _hash_to_group(text, mode))) for text in inputs]

    def evaluate_blinded(
        self, blinded: Sequence[bytes], mode: int = VERIFIABLE, nonce: bytes | None = None
    ) -> EvaluatedBatch:
        """Evaluate a batch of blinded inputs, with a proof that all were evaluated with this key.

        Parameters
        ----------
        blinded
            Up to 65,535 elements.
        mode
            Of the RFC; there is a proof only in verifiable mode.
        nonce
            The random scalar of the proof, for tests; it must never repeat.
        """
        elements = [_multiply(self.scalar, element) for element in blinded]
        if mode == BASE:
            return EvaluatedBatch(elements, b"")
        public = self.public
        weights = _weights(public, blinded, elements, mode)
        composite = _combine(weights, blinded)
        evaluated = _multiply(self.scalar, composite)
        nonce = nonce or rbcl.crypto_core_ristretto255_scalar_random()
        commitments = rbcl.crypto_scalarmult_ristretto255_base(nonce), _multiply(nonce, composite)
        challenge = _challenge(public, composite, evaluated, *commitments, mode=mode)
        product = rbcl.crypto_core_ristretto255_scalar_mul(challenge, self.scalar)
        response = rbcl.crypto_core_ristretto255_scalar_sub(nonce, product)
        return EvaluatedBatch(elements, challenge + response)


class EvaluatedBatch(NamedTuple):
    """A batch of evaluated elements and the proof for it."""

    elements: list[bytes]
    proof: bytes


def blind(inputs: Iterable[tuple[bytes, bytes]], mode: int = VERIFIABLE) -> list[bytes]:
    """Return inputs, each given with its random scalar, as the holder of the key receives them."""
    return [_multiply(scalar, _hash_to_group(text, mode)) for text, scalar in inputs]


def random_blinds(count: int) -> list[bytes]:
    """Return fresh random scalars; one must never serve two inputs."""
    return [rbcl.crypto_core_ristretto255_scalar_random() for _ in range(count)]


def random_elements(count: int) -> list[bytes]:
    """Return random elements, which nobody can tell from blinded inputs."""
    return [rbcl.crypto_core_ristretto255_random() for _ in range(count)]


def verify(public: bytes, blinded: Sequence[bytes], evaluation: EvaluatedBatch, mode: int = VERIFIABLE) -> None:
    """Raise ``WireError`` unless all elements of a batch were evaluated with the key of this public key."""
    elements, proof = evaluation
    if len(elements) != len(blinded) or len(proof) != PROOF_BYTES:
        message = f"{len(elements)} evaluated elements and {len(proof)} bytes of proof for {len(blinded)} sent"
        raise WireError(f"{message}; the evaluation is refused", code="bad-evaluation")
    challenge, response = (_check_scalar(part) for part in (proof[:SCALAR_BYTES], proof[SCALAR_BYTES:]))
    weights = _weights(public, blinded, elements, mode)
    composite, evaluated = _combine(weights, blinded), _combine(weights, elements)
    commitments = (
        _add(rbcl.crypto_scalarmult_ristretto255_base(response), _multiply(challenge, public)),
        _add(_multiply(response, composite), _multiply(challenge, evaluated)),
    )
    if not hmac.compare_digest(challenge, _challenge(public, composite, evaluated, *commitments, mode=mode)):
        message = "the proof of an evaluation is wrong: some tokens were evaluated with another key; nothing was opened"
        raise WireError(message, code="bad-proof")


def finalise(evaluated: Sequence[tuple[bytes, bytes, bytes]]) -> list[bytes]:
    """Return the function's values from inputs, their scalars and verified evaluated elements."""
    inverses = _invert([scalar for _, scalar, _ in evaluated])
    return [
        _output(text, _multiply(inverse, element))
        for inverse, (text, _, element) in zip(inverses, evaluated, strict=True)
    ]


def _invert(scalars: Sequence[bytes]) -> list[bytes]:
    """Return the inverses of scalars by one inversion and three products each (Montgomery's trick)."""
    times = rbcl.crypto_core_ristretto255_scalar_mul
    products = [_ONE]
    for scalar in scalars:
        products.append(times(products[-1], scalar))
    inverse, inverses = rbcl.crypto_core_ristretto255_scalar_invert(products[-1]), list[bytes]()
    for scalar, before in zip(reversed(scalars), reversed(products[:-1]), strict=True):
        inverses.append(times(inverse, before))
        inverse = times(inverse, scalar)
    return inverses[::-1]


def _output(text: bytes, element: bytes) -> bytes:
    return hashlib.sha512(_sized(text) + _sized(element) + b"Finalize").digest()


def _weights(public: bytes, blinded: Sequence[bytes], elements: Sequence[bytes], mode: int) -> list[bytes]:
    """Return the scalars by which a proof combines all elements of a batch into one."""
    seed = _sized(hashlib.sha512(_sized(public) + _sized(b"Seed-" + _context(mode))).digest())
    return [
        _hash_to_scalar(seed + place.to_bytes(2, "big") + _sized(left) + _sized(right) + b"Composite", mode)
        for place, (left, right) in enumerate(zip(blinded, elements, strict=True))
    ]


def _combine(weights: Sequence[bytes], elements: Sequence[bytes]) -> bytes:
    total = _multiply(weights[0], elements[0])
    for weight, element in zip(weights[1:], elements[1:], strict=True):
        total = _add(total, _multiply(weight, element))
    return total


def _challenge(*elements: bytes, mode: int) -> bytes:
    return _hash_to_scalar(b"".join(map(_sized, elements)) + b"Challenge", mode)


# Many inputs: batches in threads

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int], object]


def map_batches(
    work: Callable[[Sequence[Item]], Result],
    items: Sequence[Item],
    progress: Progress | None = None,
    size: int = MAX_BATCH,
) -> list[Result]:
    """Return the result of every batch of items, in order; ``progress`` is called with the number of items done.

    >>> map_batches(sum, range(3000), print)
    1024
    2048
    3000
    [523776, 1572352, 2402372]
    """
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    if progress is None and len(batches) == 1:  # a new record: starting threads would take as long
        return [work(batches[0])]
    results, done = [], 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for batch, result in zip(batches, pool.map(work, batches), strict=True):
            results.append(result)
            done += len(batch)
            if progress is not None:
                progress(done)
    return results
