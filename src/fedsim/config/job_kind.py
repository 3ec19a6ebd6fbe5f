"""What differs between the two kinds of jobs in words and rules: linked directly, or by a coordinator.

How they run differs in three places, one in each trust zone: ``runtime.linking`` at the primary, ``runtime.secondary``
at a secondary, and ``contribution.linked_tables`` where all tables are in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Protocol

from fedsim.protocol.messages import Role

if TYPE_CHECKING:
    from fedsim.config.job import Job


class JobKind(Protocol):
    """What the kind of a job decides, beside how it runs."""

    SHARES_KEY: ClassVar[bool]
    """Whether primary and secondaries encode their identifiers with a key that they share."""
    COUNTS_ROWS: ClassVar[bool]
    """Whether a secondary can count the rows that the primary uses."""
    LINKS_SEEN: ClassVar[str]
    """What the primary sees of the links."""

    def scaled_over(self, job: Job) -> str:
        """Return whose links are on average at zero."""
        ...

    def keeps(self, role: Role) -> str:
        """Return which secret stays with a party."""
        ...

    def settings(self, job: Job) -> Iterator[tuple[str, str]]:
        """Yield name and value of what leaves the parties, for an owner who approves the job."""
        ...


class DirectKind:
    """Records open rows of the secondary's encrypted table; there is no coordinator."""

    SHARES_KEY: ClassVar[bool] = False
    COUNTS_ROWS: ClassVar[bool] = False
    LINKS_SEEN: ClassVar[str] = (
        "similarities by the tokens in common with rows that its records opened, under pseudonymous numbers"
    )

    def scaled_over(self, job: Job) -> str:
        return "the training records"

    def keeps(self, role: Role) -> str:
        return "the values of evaluated tokens" if role is Role.PRIMARY else "the key of its table"

    def settings(self, job: Job) -> Iterator[tuple[str, str]]:
        protection = job.protection
        yield "coordinator", "none: no other party takes part, and no key is shared"
        yield "labels", "sealed: nothing that depends on a label leaves the primary"
        yield "embedding", f"every vector is sent as {protection.embedding_name} embedding"
        yield "retention", f"the primary stores opened vectors for up to {protection.retention.days} days"


class CoordinatorKind:
    """A third party compares encoded identifiers."""

    SHARES_KEY: ClassVar[bool] = True
    COUNTS_ROWS: ClassVar[bool] = True
    LINKS_SEEN: ClassVar[str] = (
        "the similarities that the coordinator sends, and pseudonymous row numbers. Distances stay with the coordinator"
    )

    def scaled_over(self, job: Job) -> str:
        return "all records" if job.protection.sealed else "the training records"

    def keeps(self, role: Role) -> str:
        return "the key"

    def settings(self, job: Job) -> Iterator[tuple[str, str]]:
        protection = job.protection
        yield "coordinator", "sees the encoded identifiers of all parties; `fedsim audit` measures what they reveal"
        if protection.sealed:
            yield "labels", "sealed: no gradient and nothing else that depends on a label leaves the primary"
            yield "cut", f"every linked row once, as {protection.embedding_name} embedding"
            yield "retention", f"the primary stores these rows for up to {protection.retention.days} days"
            return
        yield "cut", "activations and gradients, without noise"
        if job.sends_embedding:
            yield "embedding", f"every linked row once, as {protection.embedding_name} embedding"


DIRECT, BY_COORDINATOR = DirectKind(), CoordinatorKind()
