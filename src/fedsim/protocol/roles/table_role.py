"""The secondary's side of a job without a coordinator: its encrypted table, and evaluations of the primary's tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.errors import PeerError, PolicyError, WireError
from fedsim.linkage.direct.exchange import TokenEvaluator
from fedsim.protocol import messages as m
from fedsim.protocol.session import Session, send_notices
from fedsim.protocol.transport import NO_BYTES, PART_BYTES, Envelope
from fedsim.types import Bits


@dataclass(frozen=True)
class TableFile:
    """The encrypted table that is sent: its file with digest and size, and what the primary is told of it."""

    path: Path
    digest: str
    size: int
    rows: int
    n_values: int

    def part(self, start: int) -> Bits:
        """Return the bytes of one message from here on."""
        with self.path.open("rb") as file:
            file.seek(start)
            return np.frombuffer(file.read(PART_BYTES), np.uint8)


@dataclass(frozen=True, eq=False)
class TableResponder:
    """Answers the primary.

    ``on_evaluation`` is called with the number of tokens before they are sent, ``on_table`` when the end of the table
    is sent, ``on_finish`` when the primary has opened its rows.
    """

    table: TableFile
    evaluator: TokenEvaluator
    on_table: Callable[[], None]
    on_evaluation: Callable[[int], None]
    on_finish: Callable[[], None]

    def serve(self, session: Session) -> None:
        """Answer until the primary says farewell; an exception ends the session earlier."""
        while not isinstance((envelope := session.receive()).message, m.Farewell):
            session.send(self._reply(session, envelope), reply_to=envelope.sequence)

    def _reply(self, session: Session, envelope: Envelope) -> m.Message:
        message = envelope.message
        if isinstance(message, m.Meet):
            if message.predicting:
                session.phase = m.Phase.PREDICT
            return m.Ready(self.table.n_values, self.table.rows)
        if isinstance(message, m.FetchTable):
            return self._part(message)
        if isinstance(message, m.Evaluate):
            return self._evaluate(session, message)
        if isinstance(message, m.Finish):
            session.phase = m.Phase.END
            self.on_finish()
            return m.Done("")
        raise PeerError(f"{session.peer} sent '{message.kind}', which is unexpected here", code="unexpected-message")

    def _part(self, message: m.FetchTable) -> m.TablePart:
        table, start = self.table, message.start
        if message.have == table.digest or start >= table.size:
            return m.TablePart(table.digest, table.size, min(start, table.size), content=NO_BYTES)
        content = table.part(start)
        if start + len(content) == table.size:
            self.on_table()
        return m.TablePart(table.digest, table.size, start, content=content)

    def _evaluate(self, session: Session, message: m.Evaluate) -> m.Evaluated:
        blinded = [element.tobytes() for element in message.blinded]
        try:
            with send_notices(session, "evaluating tokens"):
                answers = self.evaluator.evaluate(session.peer.name, blinded)
        except (PolicyError, WireError) as error:
            if isinstance(error, PolicyError) and not session.connection.serves_predictions:
                raise
            raise PeerError(str(error), code=error.code) from error  # ends this session only
        self.on_evaluation(len(blinded))
        elements = b"".join(element for answer in answers for element in answer.elements)
        proofs = b"".join(answer.proof for answer in answers)
        return m.Evaluated(
            elements=np.frombuffer(elements, np.uint8).reshape(message.blinded.shape),
            proofs=np.frombuffer(proofs, np.uint8).reshape(len(answers), -1),
        )
