"""What a party stores in its run folder: its secret and the noise drawn from it, encoded identifiers, weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from torch import Tensor

from fedsim.cells import read_number_columns
from fedsim.config.job import CutTerms, FeatureTerms, Job, Protection, SecondaryTerms
from fedsim.errors import FileError
from fedsim.linkage.encoding import FittedEncoding, NumericFilter
from fedsim.linkage.files import load_encoded, save_encoded
from fedsim.privacy.keyed_prng import BLOCK_KEY_BYTES, SECRET_BYTES, WORD_DTYPE, Words, derive_subkey, random_words
from fedsim.privacy.mechanisms import NoisyFeatures, PlanarLaplace
from fedsim.privacy.pair_noise import normal_from_words
from fedsim.protocol.cut_layer import CutNoise
from fedsim.splitnn.checkpoint_store import CheckpointStore
from fedsim.splitnn.layers import Features
from fedsim.storage.digest import arrays_digest
from fedsim.storage.files import atomic_write
from fedsim.storage.secrets import load_or_create_secret
from fedsim.types import EncodedTable, Floats

if TYPE_CHECKING:
    from fedsim.runtime.party_data import PartyData

SECRET_FILE = "secret"  # noqa: S105 - the name of a file
TRAINED_MODEL = "model"  # a party's part of the trained model
BLUR_DRAWS = ("direction", "step")


@dataclass(frozen=True)
class RunStore:
    """Model weights and encoded identifiers of one party in one job."""

    folder: Path
    job: Job

    def save_weights(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Save weights with the facts that are needed to use them."""
        self._checkpoints(name).save(0, tensors, facts)

    def has_weights(self, name: str) -> bool:
        """Return whether these weights were saved."""
        return bool(self._checkpoints(name).steps())

    def load_weights(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Load weights and facts; they must belong to this job."""
        if not self.has_weights(name):
            message = f"no trained model of job '{self.job.name}' in {self.folder}; train it first"
            raise FileError(message, code="not-trained")
        return self._checkpoints(name).load(0)

    def encoded(self, table: PartyData, secondary: str) -> EncodedTable:
        """Return the filters of a table; saved ones are used again, because noisy filters must not be drawn twice."""
        path = self.encoded_path(secondary)
        note, digest = path.with_suffix(".json"), frame_digest(table.identifiers(secondary))
        saved = None
        with suppress(OSError, ValueError, KeyError, TypeError):  # a missing or damaged note: encode again
            saved = str(json.loads(note.read_text())["identifiers"])
        if path.is_file() and saved == digest:
            return load_encoded(path)
        fit = table.fit_encoding(secondary)
        encoded = table.encode(secondary, self.folder, fit)
        path.parent.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        save_encoding_fit(fit, self.fit_path(secondary))
        save_encoded(encoded, path)
        with atomic_write(note) as part:
            part.write_text(json.dumps({"identifiers": digest}))
        return encoded

    def encode_new(self, table: PartyData, secondary: str) -> EncodedTable:
        """Return the filters of records that were not in the training table; words weigh as they did in training."""
        fit = load_encoding_fit(self.fit_path(secondary))
        fields = self.job.secondaries[secondary].encoding.fields
        if fit is None and any(isinstance(field.encoding, FittedEncoding) for field in fields):
            message = f"the word counts of job '{self.job.name}' are not in {self.folder}; train it again"
            raise FileError(message, code="not-trained")
        return table.encode(secondary, self.folder, fit)

    def fit_path(self, secondary: str) -> Path:
        """Return the path of what the encodings for one list learnt from the training table."""
        return self.folder / "encoded" / f"{secondary}-fit.json"

    def encoded_path(self, secondary: str) -> Path:
        """Return the path of the filters for one list."""
        return self.folder / "encoded" / f"{secondary}.safetensors"

    def _checkpoints(self, name: str) -> CheckpointStore:
        return CheckpointStore(self.folder / name, {"job": self.job.hash})


def save_encoding_fit(fit: Mapping[str, Any], path: Path) -> None:
    """Save what encodings learnt from a table for its owner alone: it may contain words of the table."""
    with atomic_write(path, mode=0o600) as part:
        part.write_text(json.dumps(fit, ensure_ascii=False), encoding="utf-8")


def load_encoding_fit(path: Path) -> dict[str, Any] | None:
    """Load what :func:`save_encoding_fit` saved; None where there is no such file."""
    if not path.exists():
        return None
    try:
        fit = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}; train or encode the first table again", code="damaged-file") from error
    if not isinstance(fit, dict):
        raise FileError(f"{path} is not a file of word counts; name another file", code="damaged-file")
    return fit


def frame_digest(frame: pl.DataFrame) -> str:
    """Return a digest of all cells of a table; it stays in the party's folder."""
    text = frame.select(pl.all().cast(pl.String)).write_csv()
    return arrays_digest(np.frombuffer(text.encode(), np.uint8))


# The job's protection settings, applied with this party's secret. Noise depends on the secret and on what it protects,
# so that a restart or a second request draws the same noise again.


def derive_seed(secret: bytes, seed: int) -> int:
    """Derive a seed that nobody else knows, another one for every seed of a job."""
    return int.from_bytes(derive_subkey(secret, f"weights of seed {seed}", 8), "big") >> 1


def load_cut_noise(terms: CutTerms | None, folder: Path) -> CutNoise | None:
    """Return clipping and noise for what this party sends over the cut."""
    return None if terms is None else cut_noise_from_secret(terms, load_or_create_secret(folder / SECRET_FILE))


def cut_noise_from_secret(terms: CutTerms | None, secret: bytes) -> CutNoise | None:
    """Return clipping and noise by a given secret."""
    return None if terms is None else CutNoise(terms.clip, terms.noise, secret)


def blur_identifiers(identifiers: pl.DataFrame, terms: SecondaryTerms, folder: Path, table: str) -> pl.DataFrame:
    """Move coordinates as the job requires, by the secret in this folder."""
    if terms.blur is None:
        return identifiers
    return blur_with_secret(identifiers, terms, load_or_create_secret(folder / SECRET_FILE), table)


def blur_with_secret(identifiers: pl.DataFrame, terms: SecondaryTerms, secret: bytes, table: str) -> pl.DataFrame:
    """Move coordinates by a given secret.

    A place moves to the same position in every record and table, because two draws would average out. Lists with
    different blurs draw independently, because two scales of one draw would reveal the place. A position outside the
    range of its encoding is clipped, which costs no privacy.
    """
    blur = terms.blur
    if blur is None:
        return identifiers
    columns = [blur.latitude, blur.longitude]
    places = read_number_columns(identifiers, columns, table)
    blocks = np.ascontiguousarray(places + 0.0).view(WORD_DTYPE)  # negative zero is the same place
    keys = [derive_subkey(secret, f"{draw} of blur {blur.epsilon_per_km!r}", BLOCK_KEY_BYTES) for draw in BLUR_DRAWS]
    uniform = np.column_stack([_uniform_from_words(random_words(key, blocks)) for key in keys])
    moved = PlanarLaplace(blur.epsilon).displace(places, uniform)
    ranges = {
        field.column: (field.encoding.low, field.encoding.high)
        for field in reversed(terms.encoding.fields)
        if isinstance(field.encoding, NumericFilter)
    }
    return identifiers.with_columns(
        pl.Series(name, np.clip(moved[:, axis], *ranges[name]) if name in ranges else moved[:, axis])
        for axis, name in enumerate(columns)
    )


def bit_flip_rng(identifiers: pl.DataFrame, folder: Path) -> np.random.Generator:
    """Return the generator that flips bits of filters; the same records flip the same bits again."""
    secret = load_or_create_secret(folder / SECRET_FILE)
    seed = derive_subkey(secret, f"bits of {frame_digest(identifiers)}", SECRET_BYTES)
    return np.random.default_rng(int.from_bytes(seed, "big"))


def protect_features(features: Features, frame: pl.DataFrame, protection: Protection, folder: Path) -> Features:
    """Add the noise that a job requires to features, by the secret in this folder."""
    terms = protection.features
    if terms is None:
        return features
    return add_feature_noise(features, terms, load_or_create_secret(folder / SECRET_FILE), table=frame_digest(frame))


def add_feature_noise(features: Features, terms: FeatureTerms, secret: bytes, *, table: str) -> Features:
    """Add noise to features by a given secret; ``table`` is the digest of the cells they were made from.

    Another table or another scale draws new noise, because two scales of one draw would reveal it.
    """
    mechanism, (n_numbers, n_codes) = NoisyFeatures(terms.noise), features.columns
    key = derive_subkey(secret, f"features with noise {terms.noise!r} of {table}", BLOCK_KEY_BYTES)
    n_rows, n_columns = len(features), n_numbers + 2 * n_codes
    blocks = np.empty((n_rows, n_columns, 2), WORD_DTYPE)  # two words per cell: row and column
    blocks[..., 0] = np.arange(n_rows, dtype=np.uint64)[:, None]
    blocks[..., 1] = np.arange(n_columns, dtype=np.uint64)
    words = random_words(key, blocks)
    numbers = mechanism.add_noise(features.numbers, normal_from_words(words[:, :n_numbers]))
    coins = _uniform_from_words(words[:, n_numbers:]).reshape(n_rows, n_codes, 2)
    codes = mechanism.randomise_categories(features.codes, features.cardinalities, coins)
    return replace(features, numbers=numbers.astype(np.float32), codes=codes, spread=features.many_valued)


def _uniform_from_words(words: Words) -> Floats:
    """Convert random words to numbers from 0 to 1."""
    return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64)
