"""The attacks on split training: a short local training is recorded at the cut layer and attacked from both sides.

A row is sent in many steps; its mean over the run is attacked.

Letters: U rows, C width of the cut layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

import numpy as np
import torch

from fedsim.config.disclosure import Paragraph
from fedsim.config.job import EmbeddingName, Job, Protection
from fedsim.config.party_file import PartyFile
from fedsim.config.stored_audit import Adversary, AttackKind, Victim
from fedsim.errors import InputError
from fedsim.pipeline.party_table import PartyData
from fedsim.privacy import keyed_prng, mechanisms
from fedsim.protocol.messages import Role
from fedsim.runtime import run_store
from fedsim.runtime.primary import training_config
from fedsim.splitnn import Features
from fedsim.splitnn.party_model import RandomSource
from fedsim.splitnn.secondary_model import LocalSecondary, start_secondary
from fedsim.training import Config, NeighbourList, PrimaryData, SecondaryData, TaskType, train, train_with
from fedsim.training.data import Metrics, as_features
from fedsim.types import AnyArray, Floats, Integers, Links, Split
from fedsim_audit.attacks import cut_layer_attacks
from fedsim_audit.attacks.attack_finding import AttackFinding
from fedsim_audit.attacks.similarity_attacks import LinksByPartner
from fedsim_audit.audit_report import NO_GUARANTEE, Guarantee, PlannedAttack
from fedsim_audit.linkage_attacks import AuditedLinkage

KNOWN_SHARE = 0.05
MIN_KNOWN_ROWS = 20
MAX_EMBEDDED_ROWS = 2_000  # on which embeddings are compared
WARM_UP_SHARE = 0.25  # of the steps; their gradients are long and say little


@dataclass(frozen=True, eq=False, repr=False)
class TrainingInputs:
    """The features of both sides, the labels, and the split."""

    job: Job
    primary: PrimaryData
    secondary: Features  # in the secondary's own order
    split: Split
    labelled: bool = True  # or made up, where those of the primary are not available


@dataclass(frozen=True, eq=False, repr=False)
class CutTranscript:
    """What crossed the cut layer, as a mean by row over the run, and the metrics of the model."""

    rows: Integers  # (U,), rows of the secondary
    activations: Floats  # (U, C), as the primary saw them
    gradients: Floats  # (U, C), as the secondary saw them; zeros where it saw none
    own: Floats  # (U, C), the secondary's activations after training, without noise
    labels: AnyArray  # (U,), whether the mean label of the records that list a row is above the median
    counts: Integers  # (U,), how often each row was sent
    metrics: Metrics  # on the validation records
    test: Metrics = field(default_factory=dict)


def training_inputs(job: Job, primary: PartyData, secondary: PartyData, split: Split) -> TrainingInputs:
    """Prepare both tables as the parties would; a secondary alone has none of the labels and uses made-up ones."""
    task = TaskType.CLASSES if job.task.kind == "classification" else TaskType.NUMBERS
    features, labelled = run_store.network_features(primary, split.train), primary.own.role is Role.PRIMARY
    labels = primary.labels[0] if labelled else _made_up_labels(features, task)
    data = PrimaryData(features, labels, task, job.primary.name)
    return TrainingInputs(job, data, run_store.network_features(secondary), split, labelled)


def _made_up_labels(features: Features, task: TaskType) -> AnyArray:
    """Return a mix of the features, above zero, or whether it is above the median."""
    columns = feature_columns(features)
    mix = columns @ np.random.default_rng(0).normal(size=columns.shape[1])
    return (mix > np.median(mix)).astype(np.int64) if task is TaskType.CLASSES else mix - mix.min() + 1.0


def record_training(
    inputs: TrainingInputs, linkage: AuditedLinkage, epochs: int, protection: Protection | None = None
) -> CutTranscript:
    """Train for some epochs and record what crosses the cut layer, under the job's protection or another."""
    protection = inputs.job.protection if protection is None else protection
    secret = np.random.default_rng([linkage.setup.seed, 3]).bytes(keyed_prng.SECRET_BYTES)
    torch.set_num_threads(1)
    config = replace(training_config(inputs.job), epochs=epochs, patience=None, save_steps=None)
    steps = epochs * config.steps_per_epoch(len(inputs.split.train))
    job = inputs.job.model_copy(update={"protection": protection})
    features = run_store.protect_features(inputs.secondary, job, secret, linkage.setup.name)
    if protection.sealed:
        return _record_sealed(replace(inputs, job=job), linkage, config, features, secret)
    local = start_secondary(linkage.setup.name, features.take(linkage.order), config.secondary, total_steps=steps)
    recorder = cut_layer_attacks.Eavesdropper(local, int(WARM_UP_SHARE * steps))
    lists = [NeighbourList(Links(linkage.view.partner, linkage.view.similarity), (recorder,))]
    result = train_with(inputs.primary, lists, inputs.split, config)
    transcript = _transcript(inputs, linkage, recorder, local, result.metrics["validation"])
    return replace(transcript, test=result.metrics["test"])


def sample_known_rows(n_rows: int, rng: np.random.Generator) -> Integers:
    """Return the rows that an attacker is assumed to know."""
    return rng.choice(n_rows, min(n_rows - 1, max(MIN_KNOWN_ROWS, round(KNOWN_SHARE * n_rows))), replace=False)


def feature_columns(features: Features) -> Floats:
    """Return the columns that are inverted: the numbers, or the categories if there are none, (n, e)."""
    return np.asarray(features.numbers if features.numbers.shape[1] else features.codes, dtype=np.float64)


def _record_sealed(
    inputs: TrainingInputs, linkage: AuditedLinkage, config: Config, features: Features, secret: bytes
) -> CutTranscript:
    """Train as the primary does under sealed labels; all that crosses the cut layer is every linked row, once."""
    source = RandomSource(int.from_bytes(secret[:7], "big"), linkage.setup.name)
    sent = run_store.embedded_rows(features, inputs.job, source)
    order, view = linkage.order, linkage.view
    partners = SecondaryData(Features(sent[order]), view.partner, view.similarity, linkage.setup.name)
    result = train(inputs.primary, [partners], inputs.split, config)
    rows = np.unique(view.partner)
    values = sent[order[rows]].astype(np.float64)
    return CutTranscript(
        rows=order[rows],
        activations=values,
        gradients=np.zeros_like(values),
        own=values,
        labels=_row_labels(inputs, linkage, rows),
        counts=np.ones(len(rows), np.int64),
        metrics=result.metrics["validation"],
        test=result.metrics["test"],
    )


def embedding_leaks(job: Job, table: PartyData, seed: int = 0) -> dict[str, AttackFinding]:
    """Attack every embedding of a secondary's own rows as a primary under sealed labels could, by name.

    The primary is assumed to know the features of some rows. Noise is that of the job, drawn by another secret.
    """
    rng = np.random.default_rng(seed)
    rows = run_store.network_features(table)
    chosen = rng.permutation(len(rows))[:MAX_EMBEDDED_ROWS]
    features = rows.take(chosen)
    secret, source = rng.bytes(keyed_prng.SECRET_BYTES), RandomSource(seed, table.own.name)
    known = np.arange(min(len(features) - 1, max(MIN_KNOWN_ROWS, round(KNOWN_SHARE * len(features)))))
    columns, protection = feature_columns(features), job.protection
    used, found = run_store.protect_features(rows, job, secret, "a sample").take(chosen), {}
    for kind in get_args(EmbeddingName):
        terms = job.model_copy(update={"protection": protection.model_copy(update={"embedding": kind})})
        sent = run_store.embedded_rows(used, terms, source).astype(np.float64)
        found[kind] = cut_layer_attacks.inversion_attack(sent, columns, known, rng=rng)
    return found


def describe_embeddings(job: Job, party_file: PartyFile) -> Paragraph:
    """Say what every embedding gives away, measured on the party's own rows."""
    chosen, sentences = job.protection.embedding_name, []
    leaks = embedding_leaks(job, PartyData.read(job, party_file))
    for name, found in leaks.items():
        note = " (this job)" if name == chosen else ""
        best = found.figures["R2 of the feature guessed best"]
        sentences.append(
            f"{name}{note}: R2 {found.score.value:.2f} on average, {best:.2f} for the best-guessed feature"
        )
    known, others = leaks[chosen].figures["known rows"], leaks[chosen].targets
    knowing = f"{known:,.0f} of {known + others:,.0f} rows"
    return Paragraph(f"How well a primary that knows {knowing} can guess the features of the others", tuple(sentences))


def _transcript(
    inputs: TrainingInputs,
    linkage: AuditedLinkage,
    recorder: cut_layer_attacks.Eavesdropper,
    local: LocalSecondary,
    metrics: Metrics,
) -> CutTranscript:
    steps = recorder.recorded_steps
    if not steps:
        message = "nothing crossed the cut layer; train for more epochs or with smaller batches"
        raise InputError(message, code="nothing-recorded")
    pseudonym = np.concatenate([step.rows for step in steps])
    rows, activations = cut_layer_attacks.mean_by_row(pseudonym, np.concatenate([step.activations for step in steps]))
    every = np.concatenate([step.gradients for step in steps])
    return CutTranscript(
        rows=linkage.order[rows],
        activations=activations,
        gradients=cut_layer_attacks.mean_by_row(pseudonym, every)[1],
        own=local.infer(torch.from_numpy(rows)).numpy().astype(np.float64),
        labels=_row_labels(inputs, linkage, rows),
        counts=np.bincount(pseudonym)[rows].astype(np.int64),
        metrics=metrics,
    )


def _row_labels(inputs: TrainingInputs, linkage: AuditedLinkage, rows: Integers) -> AnyArray:
    """Return whether the mean label of the training records that list each row is above the median, (U,)."""
    labels = np.asarray(inputs.primary.labels)
    if inputs.primary.task_type is not TaskType.NUMBERS:  # the most common class against the rest
        kinds, count = np.unique(labels, return_counts=True)
        labels = labels == kinds[count.argmax()]
    train = inputs.split.train
    label = cut_layer_attacks.mean_label_by_row(linkage.view.partner[train], labels[train], len(linkage.order))[rows]
    return np.asarray(label > np.nanmedian(label))  # under sealed labels some rows belong to test records only


def _records_behind(rows: Integers, inputs: TrainingInputs, linkage: AuditedLinkage) -> Floats:
    """Return what similarities, links and the primary's own table tell it of each of these rows, (U, D)."""
    places = np.zeros((len(linkage.view), 0)) if linkage.places is None else linkage.places
    # Without the primary's table, a copy of the secondary's stands in for it; its features would give themselves away.
    own = np.hstack([feature_columns(as_features(inputs.primary.features)), places]) if inputs.labelled else places
    named = LinksByPartner.of(linkage.view)
    return cut_layer_attacks.listing_records(named, own)[np.searchsorted(named.row, np.argsort(linkage.order)[rows])]


ON_FEATURES = (Adversary.PRIMARY, Victim.SECONDARY)
ON_LABELS = (Adversary.SECONDARY, Victim.PRIMARY)


def training_attacks(
    transcript: CutTranscript, inputs: TrainingInputs, linkage: AuditedLinkage, rng: np.random.Generator
) -> Iterator[PlannedAttack]:
    """Plan the attacks of the primary on features and of the secondary on labels."""
    n_rows, protection = len(transcript.rows), inputs.job.protection
    known = sample_known_rows(n_rows, rng)
    features = feature_columns(inputs.secondary)[transcript.rows]
    promised, terms = NO_GUARANTEE, protection.features
    if terms is not None:
        promised = Guarantee(mechanisms.NoisyFeatures(terms.noise).guarantee, claimed=True)
    learns, memory = f"the features of {linkage.setup.name}", 16.0 * transcript.activations.size
    run = partial(cut_layer_attacks.inversion_attack, transcript.activations, features, known, rng=rng)
    yield PlannedAttack(AttackKind.INVERSION, *ON_FEATURES, "feature inversion", learns, run, promised, memory)
    behind = _records_behind(transcript.rows, inputs, linkage)
    run = partial(cut_layer_attacks.joint_inversion_attack, transcript.activations, behind, features, known, rng=rng)
    memory += 16.0 * behind.size
    yield PlannedAttack(AttackKind.INVERSION, *ON_FEATURES, "joint inversion", learns, run, promised, memory)
    if not inputs.labelled:
        return
    learns = "whether the records that list a row have labels above the median"
    if protection.sealed:

        def nothing_received() -> AttackFinding:
            found = cut_layer_attacks.norm_attack(transcript.gradients, transcript.labels, rng=rng)
            return replace(found, attack="label inference", knew="which of its rows are linked, and no gradient")

        promised = Guarantee("nothing that a secondary receives depends on a label", 0.5)
        yield PlannedAttack(AttackKind.GRADIENTS, *ON_LABELS, "label inference", learns, nothing_received, promised)
        return
    run = partial(cut_layer_attacks.norm_attack, transcript.gradients, transcript.labels, rng=rng)
    yield PlannedAttack(AttackKind.GRADIENTS, *ON_LABELS, "gradient norm", learns, run)
    run = partial(cut_layer_attacks.direction_attack, transcript.gradients, transcript.labels, known, rng=rng)
    yield PlannedAttack(AttackKind.GRADIENTS, *ON_LABELS, "gradient direction", learns, run)

    def row_counts() -> AttackFinding:
        # Rows that are requested often lie where records are dense.
        counts = transcript.counts[:, None].astype(np.float64)
        found = cut_layer_attacks.norm_attack(counts, transcript.labels, rng=rng)
        knew = "how often each of its rows was requested"
        return replace(found, attack="row counts", kind=AttackKind.ROW_COUNTS, knew=knew)

    def completion() -> AttackFinding:
        # Only what joint training adds to the secondary's own features counts as a leak.
        found = cut_layer_attacks.completion_attack(transcript.own, features, transcript.labels, known, rng=rng)
        raw = max(0.5, min(0.999, found.figures["AUC from raw features"]))
        return replace(found, blind=raw, knew=f"{found.knew}; guessing is the same attack on its raw features")

    by_count = f"{learns}, by how often the row is requested"
    yield PlannedAttack(AttackKind.ROW_COUNTS, *ON_LABELS, "row counts", by_count, row_counts)
    yield PlannedAttack(AttackKind.COMPLETION, *ON_LABELS, "model completion", learns, completion)
