"""A party's data in a job: its table as features, label and encoded identifiers; its noise and saved weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from fedsim.cells import CellType, read_cells, read_number_columns
from fedsim.config.job import Job, SecondaryTerms
from fedsim.config.party_file import PartyColumns, PartyFile, resolve_columns
from fedsim.config.policy import record_count_violations
from fedsim.data.features import FeaturePreprocessor, FeatureRules, fit_preprocessor
from fedsim.data.splits import SplitRecords, group_matching_records
from fedsim.data.table_reader import frame_digest, infer_numbers
from fedsim.errors import FileError, FingerprintError, InputError, PolicyError, SettingError
from fedsim.linkage.encoding import (
    FittedEncoding,
    Key,
    NormalisingEncoding,
    NumericFilter,
    Schema,
    StringFilter,
    cell_type,
    normalise_text,
)
from fedsim.linkage.files import load_encoded, save_encoded
from fedsim.privacy import keyed_prng, mechanisms, pair_noise
from fedsim.registry import PRESETS, SPLITS
from fedsim.runs.approval import require_approval
from fedsim.runs.earlier_run import find_earlier_run
from fedsim.runs.run_folder import ENCODED_FOLDER, SECRET_FILE, TRAINED_MODEL
from fedsim.runtime.party_context import PartyContext
from fedsim.splitnn import embedding, layers, party_model
from fedsim.storage import files, tensor_file
from fedsim.types import EncodedTable, Floats, Floats32, Integers, Split, Words

LASTING_SECRET_FILE = "lasting-secret"  # noqa: S105
BLUR_DRAWS = ("direction", "step")
SEALED_FILE, SEALED_FORMAT = "sealed.safetensors", "sealed rows 1"  # what a secondary sends under sealed labels


@dataclass(frozen=True, eq=False)
class PartyData:
    """The records of a party in a job; ``frame`` holds text wherever the file does.

    Both roles, predictions, the contribution ladder and the audit turn a table into identifiers, features and labels by
    this class. ``source`` is the table's name in errors.
    """

    frame: pl.DataFrame
    columns: PartyColumns
    own: PartyFile
    job: Job
    source: str

    @classmethod
    def read(cls, job: Job, own: PartyFile, *, least: int = 1, approved: bool = False) -> PartyData:
        """Read the table that a party file names.

        Parameters
        ----------
        job, own
            The job and the party's file.
        least
            The number of records below which the table is refused.
        approved
            Whether the owner must have approved the job with these columns, and the policy allow this many records;
            wherever something is sent to another party.
        """
        if own.data is None:
            message = f"the file of {own.party} names no data; add [data] file"
            raise SettingError(message, code="no-data", party=str(own.party))
        frame = own.data.read()
        if approved:
            require_approval(job, own, frame.columns)
            violations = record_count_violations(own, len(frame))
            if violations:
                raise PolicyError("; ".join(broken.message for broken in violations), code="policy-violation")
        if len(frame) < least:
            message = f"{own.data.source} has {len(frame)} records; at least {least} are needed"
            raise InputError(message, code="too-few-records", found=len(frame), least=least)
        return cls(frame, resolve_columns(job, own, frame.columns), own, job, str(own.data.source))

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"PartyData({len(self)} records of {self.own.party})"

    def take(self, rows: Integers) -> PartyData:
        """Return the same with some of the records."""
        return replace(self, frame=self.frame[rows])

    def features(self) -> pl.DataFrame:
        """Return the columns that are learnt from; text columns that hold only numbers are numbers."""
        return self._infer_numbers(self.columns.features or ())

    def fit_features(self, rows: Integers | None = None) -> FeaturePreprocessor:
        """Learn from some rows (by default all) how the features become network inputs."""
        rules = FeatureRules(kinds=self.own.features.kinds, identifiers=self.columns.linking)
        label = self.columns.label
        return fit_preprocessor(self.features(), party=str(self.own.party), rows=rows, rules=rules, label=label)

    def network_features(self, rows: Integers | None = None) -> layers.Features:
        """Return the features as network inputs, prepared as :meth:`fit_features` learns from these rows."""
        return layers.Features.of(self.fit_features(rows).apply(self.features()))

    def labels(self) -> tuple[NDArray[Any], list[Any]]:
        """Return the label as the job's task wants it: numbers, or places in the list of classes, and that list.

        A record without a label has NaN, or -1 as its class.
        """
        if self.columns.label is None:
            message = f"the file of {self.own.party} names no label; add [label] column"
            raise SettingError(message, code="no-label", party=str(self.own.party))
        label = self.frame[self.columns.label]
        if self.job.task.kind == "classification":
            return class_labels(label, self.source)
        numbers = read_cells(label, CellType.NUMBER).require(self.source, allow_missing=True)
        _check_values_differ(numbers, self.source)
        if self.job.task.label_scale == "log" and bool((numbers <= 0).any()):
            message = f"{self.source}: the label '{label.name}' has values of zero or less, which have no logarithm; "
            message += 'set task.label_scale = "linear"'
            raise InputError(message, code="label-not-positive", table=self.source, column=label.name)
        return numbers.cast(pl.Float64).fill_null(np.nan).to_numpy(), []

    def draw_split(self, kind: str, rng: np.random.Generator) -> Split:
        """Split the records that have a label, by a kind of split that a job may name."""
        labels, classes = self.labels()
        has_label = labels >= 0 if classes else np.isfinite(labels)
        rows = np.flatnonzero(has_label)
        split = self.split_rows(kind, rows, rng)
        return Split(rows[split.train], rows[split.validation], rows[split.test], np.flatnonzero(~has_label))

    def split_rows(self, kind: str, rows: Integers, rng: np.random.Generator) -> Split:
        """Split these records; the result counts among them."""
        records = SplitRecords(
            len(rows), lambda: self.groups()[rows], lambda: self.frame[str(self.columns.split)][rows], self.source
        )
        split: Split = SPLITS[kind](records, rng)
        return split

    def own_identifiers(self) -> pl.DataFrame:
        """Return every identifier column once, under the party's names."""
        return self._infer_numbers(self.columns.linking)

    def identifiers(self, secondary: str) -> pl.DataFrame:
        """Return the columns that link with one secondary, under the agreed names."""
        named = self.columns.identifiers[secondary]
        return self.frame.select(**{agreed: pl.col(column) for agreed, column in named.items()})

    def normalised_identifiers(self, secondary: str) -> pl.DataFrame:
        """Return the identifiers for one secondary, equal wherever the job's filters cannot tell them apart."""
        return normalise_identifiers(self.job.secondaries[secondary].encoding, self.identifiers(secondary), self.source)

    def groups(self) -> Integers:
        """Return a number per record, the same where no secondary's linkage can tell them apart."""
        written = [self.identifiers(name) for name in self.job.lists]
        normalised = [self.normalised_identifiers(name) for name in self.job.lists]
        return group_matching_records(written, normalised, party=str(self.own.party))

    def encode(self, secondary: str, secrets: NoiseSecrets, fit: Mapping[str, Any] | None = None) -> EncodedTable:
        """Return the identifiers as the coordinator may see them.

        ``fit`` is what the encodings learnt from the training table, see :meth:`fit_encoding`; by default they learn
        from these records.
        """
        if self.own.linkage is None:
            message = f"the file of {self.own.party} names no linkage key; add [linkage] key"
            raise SettingError(message, code="no-linkage-key", party=str(self.own.party))
        terms = self.job.secondaries[secondary]
        blurred = self.blurred_identifiers(secondary, secrets.lasting if terms.blur else b"")
        # The same records flip the same bits again: filters drawn twice would average the noise out.
        seed = keyed_prng.derive_subkey(secrets.of_job, f"bits of {frame_digest(blurred)}", keyed_prng.SECRET_BYTES)
        rng = np.random.default_rng(int.from_bytes(seed, "big"))
        return encode_table(terms.encoding, blurred, Key.read(self.own.linkage.key), self.source, rng=rng, fit=fit)

    def blurred_identifiers(self, secondary: str, secret: bytes) -> pl.DataFrame:
        """Return the identifiers for one list as they are encoded."""
        return blur_identifiers(self.identifiers(secondary), self.job.secondaries[secondary], secret, self.source)

    def fit_encoding(self, secondary: str) -> dict[str, Any]:
        """Return what the encodings for one secondary learn from these records, such as how frequent words are."""
        return fit_encoding(self.job.secondaries[secondary].encoding, self.identifiers(secondary), self.source)

    def _infer_numbers(self, columns: tuple[str, ...]) -> pl.DataFrame:
        return infer_numbers(self.frame.select(columns), self.own.data.missing if self.own.data else ())


def encode_table(
    schema: Schema,
    frame: pl.DataFrame,
    key: Key,
    table: str,
    *,
    rng: np.random.Generator | None = None,
    fit: Mapping[str, Any] | None = None,
) -> EncodedTable:
    """Encode a frame with the schema's columns; without ``rng``, flipped bits differ from call to call."""
    columns = _read_identifiers(schema, frame, table)
    return schema.encode(columns, key, rng or np.random.default_rng(), table=table, fit=fit)


def fit_encoding(schema: Schema, frame: pl.DataFrame, table: str) -> dict[str, Any]:
    """Return what the schema's encodings learn from a frame, see :meth:`fedsim.linkage.encoding.Schema.fit`."""
    return schema.fit(_read_identifiers(schema, frame, table), table)


def normalise_identifiers(schema: Schema, frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """Return the schema's columns with equal cells wherever no filter can tell them apart.

    >>> from fedsim.linkage.encoding import NumericFilter, SchemaField
    >>> schema = Schema([SchemaField("name", StringFilter()), SchemaField("age", NumericFilter(0, 120, 5))])
    >>> normalise_identifiers(schema, pl.DataFrame({"name": ["Ada ", "ADA"], "age": ["36", "36.0"]}), "ours").n_unique()
    1
    """
    encoded = {name for field in schema.fields for name in field.columns}
    forms: dict[str, dict[Callable[[str], str], None]] = {}  # of each column; a dictionary keeps order and is a set
    for field in schema.fields:
        if isinstance(field.encoding, NormalisingEncoding):
            forms.setdefault(field.column, {})[field.encoding.normal_form] = None
        if isinstance(field.encoding, StringFilter) and field.salt is not None:
            forms.setdefault(field.salt, {})[field.encoding.normal_form] = None
    columns = []
    for name, cells in _read_identifiers(schema, frame, table).items():
        if name not in encoded:  # a salt, of which only equality counts
            cells = read_cells(cells, CellType.KEY, parse=False).require(table)  # noqa: PLW2901
        if cells.dtype == pl.Float64:
            columns.append(cells + 0.0)  # no zero is negative
        elif cells.dtype == pl.String:
            # Cells are equal if they are equal to every encoding of the column.
            chosen = forms.get(name) or [normalise_text]
            texts = [cell if cell is None else "\n".join(form(cell) for form in chosen) for cell in cells]
            columns.append(pl.Series(name, texts, pl.String))
        else:
            columns.append(cells)
    return pl.DataFrame(columns)


def _read_identifiers(schema: Schema, frame: pl.DataFrame, table: str) -> dict[str, pl.Series]:
    """Return the schema's columns in the types that their encodings read; a salt stays as it is."""
    columns = {name: frame[name] for name in schema.columns}
    for field in schema.fields:
        wanted = CellType(cell_type(field.encoding))
        for name in field.columns:
            cells = read_cells(frame[name], wanted).require(table, allow_missing=schema.allows_gaps)
            columns[name] = cells.dt.date() if wanted is CellType.DATE else cells
    return columns


def class_labels(label: pl.Series, table: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a label as numbers from zero (-1: missing), and the classes they stand for, in order."""
    values = infer_numbers(pl.DataFrame([label]))[label.name]
    read_cells(values, CellType.CATEGORY).require(table, allow_missing=True)
    if values.dtype.is_float() and bool((values == values.round()).all()):
        values = values.cast(pl.Int64)
    _check_values_differ(values, table)
    classes = values.drop_nulls().unique().sort().to_list()
    places = {value: place for place, value in enumerate(classes)}
    return np.array([places.get(value, -1) for value in values.to_list()], dtype=np.int64), classes


def _check_values_differ(label: pl.Series, table: str) -> None:
    distinct = label.drop_nulls().n_unique()
    if distinct < 2:
        values = "only one value" if distinct else "no values"
        message = f"{table}: the label '{label.name}' has {values}; predict another column"
        raise InputError(message, code="constant-label", table=table, column=label.name)


# What a party stores in its run folder


@dataclass(frozen=True)
class NoiseSecrets:
    """The secrets of a party's noise, which only this party knows; each is created on first use.

    Places and features would be averaged over jobs if each job drew them anew, so they are drawn with the ``lasting``
    secret of all jobs, which is in the folder of the party.
    """

    folder: Path  # of the job
    party: Path

    @property
    def of_job(self) -> bytes:
        return files.load_or_create_secret(self.folder / SECRET_FILE)

    @property
    def lasting(self) -> bytes:
        return files.load_or_create_secret(self.party / LASTING_SECRET_FILE)


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
        """Derive a seed that nobody else knows, another one for every seed of a job."""
        return int.from_bytes(keyed_prng.derive_subkey(self.secret, f"weights of seed {seed}", 8), "big") >> 1

    def protect_features(self, features: layers.Features, table: PartyData) -> layers.Features:
        """Add the noise that the job requires to features made from this table."""
        if self.job.protection.features is None:
            return features
        return protect_features(features, self.job, self.secrets.lasting, frame_digest(table.features()))

    def embed_features(self, features: layers.Features, party: str) -> Floats32:
        """Return the embedding that a secondary sends; computed once and then read."""
        path = self.folder / SEALED_FILE
        digest = tensor_file.arrays_digest(features.numbers, features.codes)
        with suppress(FileError):  # missing or damaged: the same seed gives the same rows again
            saved, facts = tensor_file.load_tensors(path, SEALED_FORMAT, mapped=True)
            if facts == {"features": digest}:
                return np.asarray(saved["rows"])
        source = party_model.RandomSource(self.own_seed(self.job.seed), party)
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
        """Return the filters of a table; saved ones are used again, because noisy filters must not be drawn twice."""
        path = self.encoded_path(secondary)
        note, terms = path.with_suffix(".json"), self.job.secondaries[secondary]
        rules = json.dumps([terms.encoding.to_dict(), terms.model_dump(mode="json", include={"blur"})], sort_keys=True)
        # A folder of comparisons may have the filters of another job.
        current = {"identifiers": frame_digest(table.identifiers(secondary)), "rules": rules}
        if path.is_file() and current.items() <= self._note(secondary).items():
            return load_encoded(path)
        fit = table.fit_encoding(secondary)
        encoded = table.encode(secondary, self.secrets, fit)
        path.parent.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        save_encoding_fit(fit, self.fit_path(secondary))
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
        """Return the filters of records that were not in the training table; words weigh as they did in training."""
        fit = load_encoding_fit(self.fit_path(secondary))
        fields = self.job.secondaries[secondary].encoding.fields
        if fit is None and any(isinstance(field.encoding, FittedEncoding) for field in fields):
            message = f"the word counts of job '{self.job.name}' are not in {self.folder}; train it again"
            raise FileError(message, code="not-trained")
        encoded = table.encode(secondary, self.secrets, fit)
        if self._note(secondary).get("fingerprint", encoded.fingerprint) != encoded.fingerprint:
            message = f"job '{self.job.name}' was linked with a different key from the one in the party file now"
            hint = "name the key that the job started with, or train a new job with the new key"
            raise FingerprintError(f"{message}; {hint}", code="linkage-key-changed", secondary=secondary)
        return encoded

    def fit_path(self, secondary: str) -> Path:
        """Return the path of what the encodings for one list learnt from the training table."""
        return self.folder / ENCODED_FOLDER / f"{secondary}-fit.json"

    def encoded_path(self, secondary: str) -> Path:
        """Return the path of the filters for one list."""
        return self.folder / ENCODED_FOLDER / f"{secondary}.safetensors"

    def _checkpoints(self, name: str) -> party_model.CheckpointStore:
        return party_model.CheckpointStore(self.folder / name, {"job": self.job.hash})


def load_earlier_model(party_file: PartyFile, job_hash: str) -> tuple[Path, dict[str, Tensor], dict[str, Any]]:
    """Return the run folder of a finished job of this party by its hash, and the weights and facts of its model."""
    folder = find_earlier_run(party_file, job_hash)
    return folder, *party_model.CheckpointStore(folder / TRAINED_MODEL, {"job": job_hash}).load(0)


def save_encoding_fit(fit: Mapping[str, Any], path: Path) -> None:
    """Save what encodings learnt from a table for its owner alone: it may contain words of the table."""
    with files.atomic_write(path, mode=0o600) as part:
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


# The job's protection settings, applied with this party's secret. Noise depends on the secret and on what it protects,
# so that a restart or a second request draws the same noise again.


def embedding_width(job: Job) -> int:
    """Return the width of the embedding that secondaries send, unless it has one column per number and category."""
    width: int = PRESETS[job.training.preset].local.cut
    return width


def embedded_rows(
    features: layers.Features,
    job: Job,
    source: party_model.RandomSource,
    folder: Path | None = None,
) -> Floats32:
    """Return the embedding of every row that a secondary sends."""
    return embedding.embed(features, job.protection.embedding_name, embedding_width(job), source, folder)


def blur_identifiers(identifiers: pl.DataFrame, terms: SecondaryTerms, secret: bytes, table: str) -> pl.DataFrame:
    """Move coordinates as the job requires, by a given secret.

    A place moves to the same position in every record and table, because two draws would average out. Lists with
    different blurs draw independently, because two scales of one draw would reveal the place. A position outside the
    range of its encoding is clipped, which costs no privacy.
    """
    blur = terms.blur
    if blur is None:
        return identifiers
    columns = [blur.latitude, blur.longitude]
    places = read_number_columns(identifiers, columns, table)
    blocks = np.ascontiguousarray(places + 0.0).view(keyed_prng.WORD_DTYPE)  # negative zero is the same place
    keys = [
        keyed_prng.derive_subkey(secret, f"{draw} of blur {blur.epsilon_per_km!r}", keyed_prng.BLOCK_KEY_BYTES)
        for draw in BLUR_DRAWS
    ]
    uniform = np.column_stack([_uniform_from_words(keyed_prng.random_words(key, blocks)) for key in keys])
    moved = mechanisms.PlanarLaplace(blur.epsilon).displace(places, uniform)
    ranges = {
        field.column: (field.encoding.low, field.encoding.high)
        for field in reversed(terms.encoding.fields)
        if isinstance(field.encoding, NumericFilter)
    }
    return identifiers.with_columns(
        pl.Series(name, np.clip(moved[:, axis], *ranges[name]) if name in ranges else moved[:, axis])
        for axis, name in enumerate(columns)
    )


def protect_features(features: layers.Features, job: Job, secret: bytes, table: str) -> layers.Features:
    """Add noise to features, by a given secret and as the job requires."""
    terms = job.protection.features
    return features if terms is None else add_feature_noise(features, terms.noise, secret, table=table)


def add_feature_noise(features: layers.Features, noise: float, secret: bytes, *, table: str) -> layers.Features:
    """Add noise to features by a given secret; ``table`` is the digest of the cells they were made from.

    Another table or another scale draws new noise, because two scales of one draw would reveal it.
    """
    mechanism, (n_numbers, n_codes) = mechanisms.NoisyFeatures(noise), features.columns
    key = keyed_prng.derive_subkey(secret, f"features with noise {noise!r} of {table}", keyed_prng.BLOCK_KEY_BYTES)
    n_rows, n_columns = len(features), n_numbers + 2 * n_codes
    blocks = np.empty((n_rows, n_columns, 2), keyed_prng.WORD_DTYPE)  # two words per cell: row and column
    blocks[..., 0] = np.arange(n_rows, dtype=np.uint64)[:, None]
    blocks[..., 1] = np.arange(n_columns, dtype=np.uint64)
    words = keyed_prng.random_words(key, blocks)
    numbers = mechanism.add_noise(features.numbers, pair_noise.normal_from_words(words[:, :n_numbers]))
    coins = _uniform_from_words(words[:, n_numbers:]).reshape(n_rows, n_codes, 2)
    codes = mechanism.randomise_categories(features.codes, features.cardinalities, coins)
    return replace(features, numbers=numbers.astype(np.float32), codes=codes, spread=features.many_valued)


def _uniform_from_words(words: Words) -> Floats:
    """Convert random words to numbers from 0 to 1."""
    return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64)
