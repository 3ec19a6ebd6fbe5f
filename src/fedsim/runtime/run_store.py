"""What a party stores in its run folder: weights, encoded identifiers, what it sends; and the noise of features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedsim.config.job import Job
from fedsim.data.table_reader import frame_digest
from fedsim.errors import FileError, FingerprintError
from fedsim.linkage.link_files import load_encoded, save_encoded
from fedsim.pipeline.party_table import NoiseSecrets, PartyData
from fedsim.privacy import keyed_prng, mechanisms
from fedsim.registry import PRESETS
from fedsim.runs.run_folder import ENCODED_FOLDER
from fedsim.runtime.party_context import PartyContext
from fedsim.splitnn import party_model, secondary_model
from fedsim.storage import files, tensor_file
from fedsim.types import EncodedTable, Features, Floats32, Integers

SEALED_FILE, SEALED_FORMAT = "sealed.safetensors", "sealed rows 1"  # what a secondary sends under sealed labels


def network_features(table: PartyData, rows: Integers | None = None) -> Features:
    """Return a table's features as network inputs, prepared as :meth:`PartyData.fit_features` learns from rows."""
    return table.fit_features(rows).apply(table.typed_features)


@dataclass(frozen=True)
class RunStore:
    """Model weights, encoded identifiers and secrets of one party in one job.

    ``party`` is the folder of what lasts beyond the job, by default that of the job.
    """

    folder: Path
    job: Job
    party: Path | None = None

    @property
    def secrets(self) -> NoiseSecrets:
        """The secrets of this party's noise."""
        return NoiseSecrets(self.folder, self.party or self.folder)

    @property
    def secret(self) -> bytes:
        """The secret of this party's noise in this job; only this party knows it."""
        return self.secrets.of_job

    @classmethod
    def of(cls, context: PartyContext) -> RunStore:
        """Return the store of a running party."""
        return cls(context.folder, context.job, context.party_file.folder)

    def own_seed(self, seed: int) -> int:
        """Derive a secret seed, a different one for every seed of a job."""
        return int.from_bytes(keyed_prng.derive_subkey(self.secret, f"weights of seed {seed}", 8), "big") >> 1

    def protect_features(self, features: Features, table: PartyData, source: Integers | None = None) -> Features:
        """Add the noise that the job requires to features made from this table; equal ``source`` gets equal noise."""
        if self.job.protection.features is None:
            return features
        return protect_features(features, self.job, self.secrets.lasting, frame_digest(table.features), source)

    @property
    def lasting_seed(self) -> int:
        """A secret seed that is the same in all jobs of this party."""
        return int.from_bytes(keyed_prng.derive_subkey(self.secrets.lasting, "embedding of rows", 8), "big") >> 1

    def embed_features(self, features: Features, party: str, seed: int) -> Floats32:
        """Return the embedding that a secondary sends, drawn by a secret seed; computed once and then read."""
        path = self.folder / SEALED_FILE
        digest = tensor_file.arrays_digest(features.numbers, features.codes)
        with suppress(FileError):  # missing or damaged: the same seed gives the same rows again
            saved, facts = tensor_file.load_tensors(path, SEALED_FORMAT, mapped=True)
            if facts == {"features": digest}:
                return np.asarray(saved["rows"])
        source = party_model.RandomSource(seed, party)
        rows = embedded_rows(features, self.job, source, self.folder)
        tensor_file.save_tensors(path, SEALED_FORMAT, {"rows": rows}, {"features": digest})
        return rows

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
        """Return the filters of a table; saved ones are used again."""
        path = self.encoded_path(secondary)
        note, terms = path.with_suffix(".json"), self.job.secondaries[secondary]
        rules = json.dumps([terms.encoding.to_dict(), terms.model_dump(mode="json", include={"blur"})], sort_keys=True)
        # A folder of comparisons may have the filters of another job.
        current = {"identifiers": frame_digest(table.identifiers(secondary)), "rules": rules}
        if path.is_file() and current.items() <= self._note(secondary).items():
            return load_encoded(path)
        encoded = table.encode(secondary, self.secrets)
        path.parent.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        save_encoded(encoded, path)
        with files.atomic_write(note) as part:
            part.write_text(json.dumps({**current, "fingerprint": encoded.fingerprint}))
        return encoded

    def _note(self, secondary: str) -> dict[str, Any]:
        """Return what is known of saved filters; nothing if the note is missing or damaged."""
        with suppress(OSError, ValueError, TypeError):
            return dict(json.loads(self.encoded_path(secondary).with_suffix(".json").read_text()))
        return {}

    def encode_new(self, table: PartyData, secondary: str) -> EncodedTable:
        """Return the filters of records that were not in the training table."""
        encoded = table.encode(secondary, self.secrets)
        if self._note(secondary).get("fingerprint", encoded.fingerprint) != encoded.fingerprint:
            message = f"job '{self.job.name}' was linked with a different key from the one in the party file now"
            hint = "name the key that the job started with, or train a new job with the new key"
            raise FingerprintError(f"{message}; {hint}", code="linkage-key-changed", secondary=secondary)
        return encoded

    def encoded_path(self, secondary: str) -> Path:
        """Return the path of the filters for one list."""
        return self.folder / ENCODED_FOLDER / f"{secondary}.safetensors"

    def _checkpoints(self, name: str) -> party_model.CheckpointStore:
        return party_model.CheckpointStore(self.folder / name, {"job": self.job.hash})


# The job's protection settings, applied with this party's secret. Noise depends on the secret and on what it protects,
# so that a restart or a second request draws the same noise again.


def embedding_width(job: Job) -> int:
    """Return the width of the embedding that secondaries send, unless it has one column per number and category."""
    width: int = PRESETS[job.training.preset].local.cut
    return width


def embedded_rows(
    features: Features,
    job: Job,
    source: party_model.RandomSource,
    folder: Path | None = None,
) -> Floats32:
    """Return the embedding of every row that a secondary sends."""
    return secondary_model.embed(features, job.protection.embedding_name, embedding_width(job), source, folder)


def protect_features(
    features: Features, job: Job, secret: bytes, table: str, source: Integers | None = None
) -> Features:
    """Add noise to features, by a given secret and as the job requires."""
    terms = job.protection.features
    return features if terms is None else add_feature_noise(features, terms.noise, secret, table=table, source=source)


def add_feature_noise(
    features: Features, noise: float, secret: bytes, *, table: str, source: Integers | None = None
) -> Features:
    """Add noise to features by a given secret; ``table`` is the digest of the cells they were made from.

    Rows with equal ``source``, by default none, get equal noise, because the mean over rows that show the same would
    remove it.

    Another table or another scale draws new noise, because two scales of one draw would reveal it.
    """
    mechanism, (n_numbers, n_codes) = mechanisms.NoisyFeatures(noise), features.columns
    key = keyed_prng.derive_subkey(secret, f"features with noise {noise!r} of {table}", keyed_prng.BLOCK_KEY_BYTES)
    n_rows, n_columns = len(features), n_numbers + 2 * n_codes
    blocks = np.empty((n_rows, n_columns, 2), keyed_prng.WORD_DTYPE)  # two words per cell: row and column
    blocks[..., 0] = (np.arange(n_rows) if source is None else source).astype(np.uint64)[:, None]
    blocks[..., 1] = np.arange(n_columns, dtype=np.uint64)
    words = keyed_prng.random_words(key, blocks)
    numbers = mechanism.add_noise(features.numbers, keyed_prng.normal_from_words(words[:, :n_numbers]))
    coins = keyed_prng.uniform_from_words(words[:, n_numbers:]).reshape(n_rows, n_codes, 2)
    codes = mechanism.randomise_categories(features.codes, features.cardinalities, coins)
    return replace(features, numbers=numbers.astype(np.float32), codes=codes, spread=features.many_valued)
