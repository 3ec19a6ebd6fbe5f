"""Who saw what in a job: the table of the design, with what this job protects in it."""

from __future__ import annotations

from fedsim.party.job import Job
from fedsim.party.leaving import noise_words
from fedsim.party.protection import CutTerms
from fedsim.report.section import Table

NOTHING = "–"
ROLES = ("", "primary", "each secondary", "coordinator")


def who_saw_what(job: Job) -> Table:
    """One line per kind of information, one column per role."""
    cut = job.protection
    hidden = any(terms.hide_rows for terms in job.secondaries.values())
    rows = "row numbers that never repeat" if hidden else "pseudonymous row numbers"
    return Table(
        "What each role saw",
        ROLES,
        (
            ("identifiers of the primary", "its own", NOTHING, "encoded, without the key"),
            ("identifiers of a secondary", NOTHING, "its own", "encoded, without the key"),
            ("features of the primary", "its own", NOTHING, NOTHING),
            ("features of a secondary", NOTHING, "its own", NOTHING),
            ("labels", "its own", NOTHING, NOTHING),
            ("distances", NOTHING, NOTHING, "all it measured"),
            ("similarities", _similarities(job), NOTHING, "before noise"),
            ("which partners a record has", rows, "the rows asked for", "all"),
            ("activations at the cut", _cut(cut.activations), "its own", NOTHING),
            ("gradients at the cut", "its own", _cut(cut.gradients), NOTHING),
        ),
    )


def _similarities(job: Job) -> str:
    words = {name: noise_words(terms) for name, terms in job.secondaries.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return "; ".join(f"{name}: {said}" for name, said in words.items())


def _cut(terms: CutTerms | None) -> str:
    return "as they are" if terms is None else f"clipped at {terms.clip:g}, noise {terms.noise:g} times that"
