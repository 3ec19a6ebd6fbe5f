"""The guarantees of a job's privacy mechanisms, one sentence each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from fedsim.config.job import CutTerms, Job, SecondaryTerms
from fedsim.linkage.encoding.record_filters import BitFlip
from fedsim.linkage.encoding.schema import Schema
from fedsim.privacy.mechanisms import ClipAndNoise, FlippedBits, MinimumDegree, NoisyFeatures, PlanarLaplace

NOISE_REUSE_NOTE = (
    "Noise on similarities, places and features is drawn once for this job and this table: another job, even with one "
    "setting changed, or another table may draw anew, and what the draws tell adds up."
)


def privacy_guarantees(job: Job) -> list[str]:
    """All of them; a job without any says so."""
    found = [f"{name}: {sentence}" for name, terms in job.secondaries.items() for sentence in _list_guarantees(terms)]
    if job.protection.features is not None:
        found.append(f"features: {NoisyFeatures(job.protection.features.noise).guarantee}")
    for what, cut in (("activations", job.protection.activations), ("gradients", job.protection.gradients)):
        if cut is not None:
            found.append(f"{what}: {ClipAndNoise(cut.clip, cut.noise).guarantee}")
    if job.protection.gradients is not None and job.protection.gradients.noise > 0:
        found += [
            f"gradients: {_label_guarantee(name, terms, job.protection.gradients)}" for name, terms in _lists(job)
        ]
    if _draws_noise_once(job):
        found.append(NOISE_REUSE_NOTE)
    return found or ["nothing: this job lays noise on nothing"]


def _lists(job: Job) -> Iterable[tuple[str, SecondaryTerms]]:
    return job.secondaries.items()


def _draws_noise_once(job: Job) -> bool:
    """Whether any noise of this job is drawn once and kept."""
    noisy = (terms.tau is not None or bool(terms.sigma) or terms.blur is not None for _, terms in _lists(job))
    return job.protection.features is not None or any(noisy)


def _label_guarantee(name: str, terms: SecondaryTerms, cut: CutTerms) -> str:
    mu = 2.0 * math.sqrt(terms.k) / cut.noise
    return (
        f"One label touches up to {terms.k} rows of {name} in each step that its record is in, and T such steps are "
        f"{mu:.3g} * sqrt(T)-GDP for the label, given the weights."
    )


def _list_guarantees(terms: SecondaryTerms) -> Iterator[str]:
    if terms.tau is not None:
        yield (
            f"A primary that follows the paper's greedy attack guesses a filter from one similarity with probability "
            f"at most {terms.tau:g}; one that weighs all links of a partner, or only looks at who is listed, is not "
            "bounded."
        )
    if terms.sigma is not None:
        yield f"Noise of sigma {terms.sigma:g} on similarities; what it bounds depends on the spread of distances."
    if terms.blur is not None:
        yield PlanarLaplace(terms.blur.epsilon).guarantee
    yield from _bit_flip_guarantees(terms.encoding)
    yield from _row_guarantees(terms)


def _bit_flip_guarantees(schema: Schema) -> Iterator[str]:
    """The worst case of two records that differ in every bit there is when bits are flipped; later steps may fold."""
    n_bits = schema.combine.size([field.encoding.bits for field in schema.fields])
    for step in schema.hardening:
        if isinstance(step, BitFlip):
            yield FlippedBits(step.epsilon, n_bits).guarantee
        n_bits = step.size(n_bits)


def _row_guarantees(terms: SecondaryTerms) -> Iterator[str]:
    """What is done to which rows are named."""
    if terms.min_degree > 1:
        yield MinimumDegree(terms.min_degree, terms.k).guarantee
    if terms.dummies:
        yield (
            f"Of the links the primary sees, {terms.dummies:.0%} on average are random; what many links of one partner "
            "say together is not bounded."
        )
    if terms.hide_rows:
        yield (
            "The primary cannot tell whether links of records at different places lead to the same row, as long as "
            "activations are protected enough: their noise averages out over the steps; records with equal identifiers "
            "have equal links, which the primary knows."
        )
