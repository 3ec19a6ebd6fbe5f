"""Checks of the build, which ask once more: nothing is drawn twice within a job, or answered beyond a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedsim import cells
from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.errors import PolicyError
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.roles.coordinator_role import NEW_LINK_FACTOR, find_new_records
from fedsim.runs.budget import PrimaryBudget
from fedsim.runtime.secondary import longest_training
from fedsim.storage.files import DigestSet, record_digest
from fedsim.types import AnyArray, EncodedTable, Links
from fedsim_audit.attacks import AttackFinding, attack_finding
from fedsim_audit.audit_report import Guarantee, PlannedAttack
from fedsim_audit.budget_attacks import (
    ON_SECONDARY,
    BudgetAudit,
    job_secret,
    link_again,
    link_limits,
    list_state,
    protected_features,
    sent_rows,
)

MAX_CHECKED = 20_000  # requests by which a limit is reached


def planned_checks(audit: BudgetAudit) -> Iterator[PlannedAttack]:
    """Plan the checks of the answers to a repeated request."""
    promised = Guarantee("a request that is repeated within a job gets the same answer", 0.0)
    run = partial(noise_again, audit)
    yield _check("noise drawn again", "what noise should hide, by asking again", run, promised)
    promised = Guarantee("what exceeds the limits of a policy is refused", 0.0)
    run = partial(answered_beyond_limits, audit)
    yield _check("requests beyond the budget", "more than the policies allow", run, promised)


def _check(what: str, learns: str, run: Callable[[], AttackFinding], promised: Guarantee) -> PlannedAttack:
    return PlannedAttack(AttackKind.BUILD_CHECK, *ON_SECONDARY, what, learns, run, promised)


@attack_finding.timed
def noise_again(audit: BudgetAudit) -> AttackFinding:
    """Ask for everything twice, and measure the largest share of answers that differ."""
    linkage, again = audit.linkage, audit.setup.linkage()
    pairs: list[tuple[AnyArray, AnyArray]] = [
        (linkage.view.partner, again.view.partner),
        (linkage.view.similarity, again.view.similarity),
    ]
    links = link_again(linkage, linkage.encoded[0])  # the records of training, as if they were new
    pairs += [(links.partner, linkage.view.partner), (links.overall, linkage.view.similarity.astype(np.float32))]
    for place in audit.setup.all_places:
        sides = ((linkage.partners, again.partners), (linkage.linked, again.linked))
        for side in sides:
            before, after = (cells.read_number_columns(frame, place.columns, audit.setup.name) for frame in side)
            pairs.append((before, after))
    if audit.inputs is not None:
        inputs = audit.inputs
        secret = job_secret(audit, 0)
        first, second = (sent_rows(inputs, protected_features(audit, inputs), secret) for _ in range(2))
        pairs.append((first, second))
    share = max(float(np.mean(first != second)) for first, second in pairs)
    numbers, measure = sum(first.size for first, _ in pairs), "share of answers that differ when asked again"
    knew = "the answers to the same requests, twice"
    return attack_finding.check_finding("noise drawn again", Adversary.PRIMARY, (share, 0.0), numbers, measure, knew)


@attack_finding.timed
def answered_beyond_limits(audit: BudgetAudit) -> AttackFinding:
    """Ask once more than every limit allows, and measure the share of these requests that are answered."""
    with TemporaryDirectory() as folder:
        requests = (*_over_budget(audit, Path(folder)), *_over_link_limits(audit, Path(folder)))
        tried = [_is_answered(request) for request in requests]
    share, measure = sum(tried) / max(1, len(tried)), "share of requests beyond a limit that are answered"
    knew = "the limits of the policies"
    name = "requests beyond the budget"
    return attack_finding.check_finding(name, Adversary.PRIMARY, (share, 0.0), len(tried), measure, knew)


def _is_answered(request: Callable[[], object]) -> bool:
    try:
        request()
    except PolicyError:
        return False
    return True


def _over_budget(audit: BudgetAudit, folder: Path) -> Iterator[Callable[[], object]]:
    """Yield requests that exceed what a secondary shows one primary over all jobs, after all that it allows."""
    policy, epochs = audit.secondary, longest_training(audit.job)[0]
    party = Party(Role.SECONDARY, audit.setup.name)
    budget = PrimaryBudget(folder / "budget", party, audit.job.primary.name, policy)
    if audit.allowance.jobs <= MAX_CHECKED:
        for number in range(audit.allowance.jobs):
            budget.charge_job(f"job {number}", epochs)
        yield partial(budget.charge_job, "one job more", epochs)
    for limit, charge in ((policy.max_records, budget.charge_records), (policy.max_record_uses, _charge_uses(budget))):
        if limit is not None and limit <= MAX_CHECKED:
            digests = [record_digest(bytes([number % 256, number // 256])) for number in range(limit + 1)]
            charge(digests[:-1])
            yield partial(charge, digests)


def _charge_uses(budget: PrimaryBudget) -> Callable[[Iterable[bytes]], object]:
    """Return what charges uses of one record."""
    return lambda uses: budget.charge_uses((bytes(16), use) for use in uses)


def _over_link_limits(audit: BudgetAudit, folder: Path) -> Iterator[Callable[[], object]]:
    """Yield requests that exceed the new records of a list, in total and per candidate."""
    limits, queries, name = link_limits(audit), audit.linkage.encoded[0], audit.setup.name
    rng = np.random.default_rng([audit.setup.seed, 9])

    def records(number: int) -> EncodedTable:
        """Return random filters: what they are linked to is made up, too."""
        bits = rng.integers(0, 256, (number, queries.bits.shape[1]), dtype=np.uint8)
        return EncodedTable(bits, queries.n_bits, queries.fingerprint)

    if limits.new_records <= MAX_CHECKED:
        full = DigestSet(None)
        full.add(_digests(records(limits.new_records)))
        yield partial(find_new_records, full, _digests(records(1)), limits.new_records, name)
    state = list_state(audit, folder)
    degree = int(np.bincount(audit.linkage.view.partner.ravel(), minlength=1)[0])
    most = max(limits.new_links, NEW_LINK_FACTOR * degree)
    if most < limits.new_records and most <= MAX_CHECKED:
        links = Links(np.zeros((most + 1, 1), np.int32), np.zeros((most + 1, 1), np.float32))
        yield partial(state.link_new, records(most + 1), limits, lambda: links)


def _digests(table: EncodedTable) -> list[bytes]:
    return [record_digest(row.tobytes()) for row in table.bits]
