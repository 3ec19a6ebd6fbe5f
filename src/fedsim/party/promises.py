"""What the mechanisms of a job promise, each in one sentence, for the owner who has to decide."""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.linkage.encoding.hardening import BitFlip
from fedsim.party.job import Job, SecondaryTerms
from fedsim.privacy.mechanisms import ClipAndNoise, FlippedBits, MinimumDegree, NoisyFeatures, PlanarLaplace

METRES_PER_KM = 1000.0


def promises(job: Job) -> list[str]:
    """All of them; a job without any says so."""
    found = [f"{name}: {sentence}" for name, terms in job.secondaries.items() for sentence in _of_list(terms)]
    if job.protection.features is not None:
        found.append(f"features: {NoisyFeatures(job.protection.features.noise).guarantee}")
    for what, cut in (("activations", job.protection.activations), ("gradients", job.protection.gradients)):
        if cut is not None:
            found.append(f"{what}: {ClipAndNoise(cut.clip, cut.noise).guarantee}")
    return found or ["nothing: this job lays noise on nothing"]


def _of_list(terms: SecondaryTerms) -> Iterator[str]:
    if terms.tau is not None:
        yield (
            f"A primary that follows the paper's greedy attack guesses a filter from one similarity with probability "
            f"at most {terms.tau:g}; one that weighs all links of a partner, or only looks at who is listed, is not "
            "bounded."
        )
    if terms.sigma is not None:
        yield f"Noise of sigma {terms.sigma:g} on similarities; what it bounds depends on the spread of distances."
    if terms.blur is not None:
        yield PlanarLaplace(terms.blur.epsilon_per_km / METRES_PER_KM).guarantee
    for step in terms.encoding.hardening:
        if isinstance(step, BitFlip):
            yield FlippedBits(step.epsilon, terms.encoding.n_bits).guarantee
    yield from _of_rows(terms)


def _of_rows(terms: SecondaryTerms) -> Iterator[str]:
    """What is done to which rows are named."""
    if terms.min_degree > 1:
        yield MinimumDegree(terms.min_degree, terms.k).guarantee
    if terms.dummies:
        yield (
            f"Of the links the primary sees, {terms.dummies:.0%} on average are random; what many links of one partner "
            "say together is not bounded."
        )
    if terms.hide_rows:
        yield "The primary cannot tell which of its links lead to the same row, as long as activations are noisy."
