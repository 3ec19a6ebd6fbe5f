"""HTTP service of the primary: /predict, /health and a page that shows how to call them.

Host name, token and size of a request are checked before its body is read, the number of its keys before it is parsed.
Without the token, nobody learns a column or which parties are online.
"""

import asyncio
import hmac
import ipaddress
from collections.abc import Collection
from contextlib import nullcontext
from importlib.resources import files
from typing import Annotated, Any

import numpy as np
import polars as pl
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, FailFast, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedsim.errors import AwayError, FedSimError, InputError, PeerError, replace_unprintable
from fedsim.protocol.session import public_reason
from fedsim.runtime.party_context import PartyObserver
from fedsim.runtime.predictor import Predictions, Predictor
from fedsim.types import Explanation
from fedsim.version import VERSION
from fedsim_ops.connection_guard import ConnectionGuard

MAX_RECORDS = 1000
MAX_OTHER_KEYS = 100  # of a record, besides the columns of the job; they are ignored
MAX_FAULTS, MAX_NAME = 20, 100  # in the answer to an invalid request: faults, and characters of a client's key
MAX_BODY_BYTES = 8 << 20
BODY_SECONDS = 20.0  # for a client to send its body
MAX_WHOLE = 1 << 63  # larger whole numbers fit no column
PUBLIC_PATHS = ("/", "/docs", "/health", "/openapi.json")  # what they say depends on the token
STATUS_CODES: tuple[tuple[type[FedSimError], int], ...] = ((AwayError, 503), (PeerError, 502), (InputError, 422))
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
JsonCell = (
    str
    | Annotated[float, Field(allow_inf_nan=False)]
    | Annotated[int, Field(gt=-MAX_WHOLE, lt=MAX_WHOLE)]
    | bool
    | None
)


class PredictionRequest(BaseModel):
    """Records to predict, each with the features and identifiers of the training by column name.

    ``explain`` adds what contributed to each prediction, if the primary's party file allows it.
    """

    model_config = ConfigDict(extra="forbid")
    # One invalid record ends validation: a list of all faults can be a hundred times as large as the request.
    records: Annotated[list[dict[str, JsonCell]], FailFast(), Field(min_length=1, max_length=MAX_RECORDS)]
    explain: bool = False


class PredictionResponse(BaseModel):
    """Predictions in the order of the records.

    ``intervals`` has lower and upper ends around numbers, which contain the truth about nine times out of ten.
    ``probabilities`` of classes are calibrated on validation records.
    ``by`` is the method that predicted; ``solo`` means that a partner was offline and only own features were used.
    ``explanations`` say what contributed to each prediction; numbers of partner records are valid in this answer only.
    ``needed_online`` counts, in jobs without a coordinator, the records that needed each partner online.
    """

    predictions: list[Any]
    intervals: list[tuple[float, float]] | None = None
    probabilities: list[dict[str, float]] | None = None
    by: str
    away: list[str] = []
    reason: str = ""
    explanations: list[Explanation] | None = None
    needed_online: dict[str, int] = {}


class HealthStatus(BaseModel):
    """Which parties are connected; without the token only whether all are."""

    status: str
    coordinator: bool | None = None
    secondaries: dict[str, bool] | None = None


def create_app(
    predictor: Predictor,
    token: str,
    *,
    hosts: Collection[str] = (),
    guard: ConnectionGuard | None = None,
    style: str = "",
) -> FastAPI:
    """Create the web application.

    Parameters
    ----------
    predictor
        Predicts the records of requests.
    token
        Clients send it in the header ``Authorization: Bearer TOKEN``.
    hosts
        Names under which clients may address the service, besides IP addresses and ``localhost``.
    guard
        Closes connections without a request, if given.
    style
        The style sheet of its page: the colours and fonts of the reports.
    """
    title, own = f"FedSim: {predictor.context.job.name}", predictor.context.party_file
    # Its own pages for /docs and /redoc load remote scripts.
    app = FastAPI(title=title, version=VERSION, docs_url=None, redoc_url=None, openapi_url=None)
    telemetry, most_keys = predictor.context.telemetry, len(predictor.columns) + MAX_OTHER_KEYS
    app.add_middleware(
        RequestGate, token=token, hosts=frozenset(hosts), guard=guard, most_keys=most_keys, telemetry=telemetry
    )

    @app.post("/predict")
    def predict(request: PredictionRequest) -> PredictionResponse:
        """Predict up to 1,000 records."""
        columns = predictor.columns
        if request.explain and not own.serving.explain:
            message = "explanations are not served; set serving.explain = true in the primary's party file"
            raise InputError(message, code="no-explanations")
        for record in request.records:
            missing = [column for column in columns if column not in record]
            if missing:
                message = f"a record has no '{missing[0]}'; the columns are {', '.join(columns)}"
                raise InputError(message, code="missing-column", column=missing[0])
        cells = {column: _to_series([record[column] for record in request.records]) for column in columns}
        return _prediction_response(predictor.predict(pl.DataFrame(cells), explained=request.explain))

    @app.get("/health")
    async def health(request: Request) -> HealthStatus:  # async: must not wait for a thread that predictions use
        """Report 'ok' if all parties are connected, else 'partial'; with the token also which ones are."""
        coordinator, secondaries = predictor.coordinator_online, predictor.online()
        status = "ok" if coordinator is not False and all(secondaries.values()) else "partial"
        if not request.state.authorised:
            return HealthStatus(status=status)
        return HealthStatus(status=status, coordinator=coordinator, secondaries=secondaries)

    @app.get("/openapi.json", include_in_schema=False)
    def schema(request: Request) -> JSONResponse:
        shown = {"x-columns": list(predictor.columns), "x-explain": own.serving.explain}
        return JSONResponse({**app.openapi(), **(shown if request.state.authorised else {})})

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    def page() -> HTMLResponse:
        text = files("fedsim_ops").joinpath("service.html").read_text(encoding="utf-8")
        return HTMLResponse(
            text.replace("/* style */", style), headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY}
        )

    app.add_exception_handler(FedSimError, _error_response)
    app.add_exception_handler(RequestValidationError, _validation_response)
    return app


def _prediction_response(found: Predictions) -> PredictionResponse:
    response = PredictionResponse(predictions=found.values, by=found.by, away=list(found.away), reason=found.reason)
    response.needed_online = dict(found.needed_online)
    if found.intervals is not None:
        response.intervals = [(low, high) for low, high in found.intervals.tolist()]
    if found.probabilities is not None:
        names = [str(name) for name in found.classes]
        response.probabilities = [dict(zip(names, row, strict=True)) for row in found.probabilities.tolist()]
    if found.explanations:
        response.explanations = list(found.explanations)
    return response


class RequestGate:
    """Checks host, token and size of every request before its body is parsed, and limits the time to send it."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        hosts: frozenset[str],
        guard: ConnectionGuard | None,
        most_keys: int,
        telemetry: PartyObserver | None = None,
    ) -> None:
        self._app, self._secret, self._hosts, self._guard = app, f"Bearer {token}".encode(), hosts, guard
        self._most_keys, self._telemetry = most_keys, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the start and end of the server
            await self._app(scope, receive, send)
            return
        with self._guard.hold(tuple(scope["client"])) if self._guard and scope.get("client") else nullcontext():
            if self._telemetry is None:
                await self._answer(scope, receive, send)
                return
            with self._telemetry.request(scope["path"]) as request:

                async def watched(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        request.status, request.code = message["status"], scope["state"].get("code", "")
                    await send(message)

                await self._answer(scope, receive, watched)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        authorised = hmac.compare_digest(headers.get("authorization", "").encode(), self._secret)
        length = headers.get("content-length", "0")
        refusal = None
        if not self._is_allowed_host(headers.get("host", "")):
            refusal = 403, "unknown host name; use the address that the service printed, or add it with --allow-host"
        elif not authorised and scope["path"] not in PUBLIC_PATHS:
            refusal = 401, "send the token in the header 'Authorization: Bearer TOKEN'"
        elif not (length.isdecimal() and int(length[:20]) <= MAX_BODY_BYTES):
            refusal = 413, f"the body may have up to {MAX_BODY_BYTES} bytes; send fewer records"
        elif authorised:
            try:
                body = await asyncio.wait_for(_read_body(receive), BODY_SECONDS)
            except TimeoutError:
                refusal = 408, f"the body did not arrive within {BODY_SECONDS:g} seconds"
            else:
                receive = _replay(body, receive)
                if body is None:
                    refusal = 413, f"the body may have up to {MAX_BODY_BYTES} bytes; send fewer records"
                elif fault := _size_fault(body, self._most_keys):
                    refusal = 413, fault
        if refusal:
            status, detail = refusal
            scope["state"]["code"] = f"http-{status}"
            reply = JSONResponse({"detail": detail}, status, {"Connection": "close"})  # the rest is not read
            await reply(scope, receive, send)
            return
        scope["state"]["authorised"] = authorised
        await self._app(scope, receive, send)

    def _is_allowed_host(self, header: str) -> bool:
        """Return whether a page of another site cannot have sent the browser here: such a page needs a host name."""
        host = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
        if host == "localhost" or host in self._hosts:
            return True
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return True


async def _read_body(receive: Receive) -> bytes | None:
    """Read a whole body; return None if it is too long."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _size_fault(body: bytes, most_keys: int) -> str:
    """Return what a JSON body has too much of, or an empty text.

    Its brackets and separators outside strings are counted, because parsing a byte can take a hundred bytes of memory.

    >>> _size_fault(b'{"records": [{"a{": 1, "b": "{:"}]}', 2), _size_fault(b'{"records": [{"a": 1, "a": 2}]}', 1)
    ('', 'a record may have up to 1 keys; send only the columns of the job')
    """
    if b"\0" in body:  # UTF-16 or UTF-32, which the parser would accept
        return "the body must be JSON in UTF-8"
    text = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    marks = text[~np.logical_xor.accumulate(text == ord('"'))].tobytes().translate(None, _NO_MARKS)
    if marks.count(b"{") + marks.count(b"[") > MAX_RECORDS + 2:  # the request and its list
        return f"a request may have up to {MAX_RECORDS} records, and no lists or objects in them; send fewer records"
    if max(record.count(b":") for record in marks.split(b"{")) > most_keys:
        return f"a record may have up to {most_keys} keys; send only the columns of the job"
    if marks.count(b",") > MAX_RECORDS * (most_keys + 1):
        return "a list in the request is too long; send a list of records"
    return ""


_NO_MARKS = bytes(set(range(256)) - set(b"{[:,"))


def _replay(body: bytes | None, receive: Receive) -> Receive:
    """Return a channel that delivers a body that was read already, then what follows it."""
    messages: list[Message] = [{"type": "http.request", "body": body or b"", "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _to_series(values: list[JsonCell]) -> pl.Series:
    """Convert JSON values to numbers if all of them are numbers, else to text."""
    numeric = all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)
    if numeric:
        return pl.Series(values, dtype=pl.Float64)
    try:
        return pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)
    except UnicodeEncodeError:  # half of a character of JSON, such as "\ud800"
        raise InputError("a text in the records is not valid Unicode; send UTF-8", code="not-unicode") from None


async def _validation_response(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong where, without the value: JSON has no way to write all of them."""
    faults = error.errors()[:MAX_FAULTS] if isinstance(error, RequestValidationError) else []
    request.state.code = "invalid-request"
    shown = [{"loc": [*map(_shorten, each["loc"])], "msg": each["msg"], "type": each["type"]} for each in faults]
    return JSONResponse({"detail": shown}, 422)


def _shorten(part: str | int) -> str | int:
    """Return a place in a request as the answer names it; a key is a client's text."""
    return replace_unprintable(part[:MAX_NAME]) if isinstance(part, str) else part


async def _error_response(request: Request, error: Exception) -> JSONResponse:
    status = next((code for kind, code in STATUS_CODES if isinstance(error, kind)), 500)
    request.state.code = error.code if isinstance(error, FedSimError) else ""
    detail = public_reason(error) if status == 500 else str(error)
    return JSONResponse({"detail": detail}, status_code=status)
