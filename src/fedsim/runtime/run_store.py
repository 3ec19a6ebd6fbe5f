"""What a party keeps in its run folder: its secret and the noise drawn from it, encoded identifiers and model weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from torch import Tensor

from fedsim.config.job import CutTerms, FeatureTerms, Job, Protection, SecondaryTerms
from fedsim.data.columns import parse_required_numbers
from fedsim.errors import FileError
from fedsim.linkage.encoding import NumericFilter
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

# The job's words for protection as mechanisms, each with this party's own secret


SECRET_FILE = "secret"  # noqa: S105 - the name of a file
BLUR_DRAWS = ("direction", "step")


def derive_seed(secret: bytes, seed: int) -> int:
    """A seed that nobody else can know, for every seed of a job another one."""
    return int.from_bytes(derive_subkey(secret, f"weights of seed {seed}", 8), "big") >> 1


def frame_digest(frame: pl.DataFrame) -> str:
    """Stands for the cells of a table, and stays in the party's own folder."""
    text = frame.select(pl.all().cast(pl.String)).write_csv()
    return arrays_digest(np.frombuffer(text.encode(), np.uint8))


def load_cut_noise(terms: CutTerms | None, folder: Path) -> CutNoise | None:
    """Clip and noise for what this party sends over the cut."""
    return None if terms is None else cut_noise_from_secret(terms, load_or_create_secret(folder / SECRET_FILE))


def cut_noise_from_secret(terms: CutTerms | None, secret: bytes) -> CutNoise | None:
    """The same, from a secret that is at hand."""
    return None if terms is None else CutNoise(terms.clip, terms.noise, secret)


def blur_identifiers(identifiers: pl.DataFrame, terms: SecondaryTerms, folder: Path, table: str) -> pl.DataFrame:
    """Identifiers whose places have moved; the same records move to the same places again.

    A place that left the range of its encoding is brought back to the edge, which costs no privacy.
    """
    return (
        identifiers
        if terms.blur is None
        else blur_with_secret(identifiers, terms, load_or_create_secret(folder / SECRET_FILE), table)
    )


def blur_with_secret(identifiers: pl.DataFrame, terms: SecondaryTerms, secret: bytes, table: str) -> pl.DataFrame:
    """The same, by a secret that is at hand.

    A place moves to where it moved before, in whichever record and table it stands: two draws would average out. Two
    lists with blurs of their own draw apart: two scales of one draw would reveal the place.
    """
    blur = terms.blur
    if blur is None:
        return identifiers
    columns = [blur.latitude, blur.longitude]
    places = np.column_stack(
        [parse_required_numbers(identifiers[name], table=table).to_numpy() for name in columns]
    ).astype(np.float64)
    chance = np.column_stack(
        [_uniform_draws(secret, f"{draw} of blur {blur.epsilon_per_km!r}", places) for draw in BLUR_DRAWS]
    )
    elsewhere = PlanarLaplace(blur.epsilon).displace(places, chance)
    inside = [_clip_to_range(elsewhere[:, axis], terms, name) for axis, name in enumerate(columns)]
    return identifiers.with_columns(pl.Series(name, values) for name, values in zip(columns, inside, strict=True))


def bit_flip_rng(identifiers: pl.DataFrame, folder: Path) -> np.random.Generator:
    """What flips bits of filters: the same records together flip alike again, or draws would average out."""
    seed = derive_subkey(
        load_or_create_secret(folder / SECRET_FILE), f"bits of {frame_digest(identifiers)}", SECRET_BYTES
    )
    return np.random.default_rng(int.from_bytes(seed, "big"))


def _uniform_draws(secret: bytes, purpose: str, places: Floats) -> Floats:
    """A number from 0 to 1 for every place, which nobody foresees without the secret."""
    blocks = np.ascontiguousarray(places + 0.0).view(WORD_DTYPE)  # a zero with a sign is the same place
    return np.asarray(
        (random_words(derive_subkey(secret, purpose, BLOCK_KEY_BYTES), blocks) >> np.uint64(11)) * 2.0**-53
    )


def _clip_to_range(values: Floats, terms: SecondaryTerms, column: str) -> Floats:
    """Values within what the schema encodes, where it encodes them as numbers."""
    for field in terms.encoding.fields:
        if field.column == column and isinstance(field.encoding, NumericFilter):
            return np.clip(values, field.encoding.low, field.encoding.high)
    return values


# Noise on a secondary's own features, drawn once from its secret and the same after every restart


def protect_features(features: Features, frame: pl.DataFrame, protection: Protection, folder: Path) -> Features:
    """Features under the noise that a job wants, from the secret in this folder."""
    terms = protection.features
    if terms is None:
        return features
    return add_feature_noise(features, terms, load_or_create_secret(folder / SECRET_FILE), table=frame_digest(frame))


def add_feature_noise(features: Features, terms: FeatureTerms, secret: bytes, *, table: str) -> Features:
    """Features as this party's network may see them; ``table`` stands for the cells they were made from.

    Another table, or other noise, draws anew: two scales of one draw would reveal it.
    """
    mechanism, (n_numbers, n_codes) = NoisyFeatures(terms.noise), features.columns
    key = derive_subkey(secret, f"features with noise {terms.noise!r} of {table}", BLOCK_KEY_BYTES)
    words = random_words(key, _cell_blocks(len(features), n_numbers + 2 * n_codes))
    numbers = mechanism.add_noise(features.numbers, normal_from_words(words[:, :n_numbers]))
    coins: Floats = np.asarray((words[:, n_numbers:] >> np.uint64(11)) * 2.0**-53, dtype=np.float64)
    codes = mechanism.randomise_categories(
        features.codes, features.cardinalities, coins.reshape(len(features), n_codes, 2)
    )
    return replace(features, numbers=numbers.astype(np.float32), codes=codes, spread=features.many_valued)


def _cell_blocks(n_rows: int, n_columns: int) -> Words:
    """A block of two words for every cell: its row and its column."""
    blocks = np.empty((n_rows, n_columns, 2), WORD_DTYPE)
    blocks[..., 0] = np.arange(n_rows, dtype=np.uint64)[:, None]
    blocks[..., 1] = np.arange(n_columns, dtype=np.uint64)
    return blocks


Tensors = Mapping[str, Tensor]
TRAINED_MODEL = "model"  # a party's part of what was trained


@dataclass(frozen=True)
class RunStore:
    """The keeping of one party in one job."""

    folder: Path
    job: Job

    def save_weights(self, what: str, tensors: Tensors, facts: Mapping[str, Any]) -> None:
        """Keep weights with what is needed to use them."""
        self._shelf(what).save(0, tensors, facts)

    def has_weights(self, what: str) -> bool:
        """Whether they were kept."""
        return bool(self._shelf(what).steps())

    def load_weights(self, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What was kept; it must be of this very job."""
        if not self.has_weights(what):
            raise FileError(f"no trained model of job '{self.job.name}' lies in {self.folder}; train it first")
        return self._shelf(what).load(0)

    def encoded(self, table: PartyData, secondary: str) -> EncodedTable:
        """The table's filters; those kept are used again, for filters with noise must not be drawn twice."""
        path = self.encoded_path(secondary)
        folder, note = path.parent, path.with_suffix(".json")
        digest = frame_digest(table.identifiers(secondary))
        if path.is_file() and note.is_file() and _read_digest(note) == digest:
            return load_encoded(path)
        encoded = table.encoded(self.job, secondary, self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        save_encoded(encoded, path)
        with atomic_write(note) as part:
            part.write_text(json.dumps({"identifiers": digest}))
        return encoded

    def encoded_path(self, secondary: str) -> Path:
        """Where the filters for one list lie."""
        return self.folder / "encoded" / f"{secondary}.safetensors"

    def _shelf(self, what: str) -> CheckpointStore:
        return CheckpointStore(self.folder / what, {"job": self.job.hash})


def _read_digest(note: Path) -> str:
    try:
        return str(json.loads(note.read_text())["identifiers"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
