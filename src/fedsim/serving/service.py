"""HTTP service of the primary: /predict, /health and a page that shows how to call them."""

from __future__ import annotations

import hmac
from importlib.resources import files
from typing import Annotated, Any

import polars as pl
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from fedsim.errors import AwayError, FedSimError, InputError, PeerError
from fedsim.protocol.session import public_reason
from fedsim.runtime.predict import Predictor
from fedsim.version import VERSION

MAX_RECORDS = 1000
STATUS_CODES: tuple[tuple[type[FedSimError], int], ...] = ((AwayError, 503), (PeerError, 502), (InputError, 422))
JsonCell = str | float | int | bool | None


class PredictionRequest(BaseModel):
    """Records to predict: features and identifiers by column, as in training."""

    model_config = ConfigDict(extra="forbid")
    records: Annotated[list[dict[str, JsonCell]], Field(min_length=1, max_length=MAX_RECORDS)]


class PredictionResponse(BaseModel):
    """Predictions in the order of the records.

    ``by`` is the method that predicted; ``solo`` says that a partner was away and only own features were used.
    """

    predictions: list[Any]
    probabilities: list[dict[str, float]] | None = None
    by: str
    away: list[str] = []
    reason: str = ""


class HealthStatus(BaseModel):
    """Whether everybody is there."""

    status: str
    coordinator: bool
    secondaries: dict[str, bool]


def create_app(predictor: Predictor, token: str | None = None) -> FastAPI:
    """The application; with a token every question must carry it as ``Authorization: Bearer``."""
    title = f"FedSim: {predictor.post.job.name}"
    app = FastAPI(title=title, version=VERSION, docs_url=None, redoc_url=None)  # their pages load scripts from afar
    guard = [Depends(_require_token(token))] if token else []

    @app.post("/predict", dependencies=guard)
    def predict(asked: PredictionRequest) -> PredictionResponse:
        """Predictions of up to 1,000 records, and the method that made them."""
        return predict_records(predictor, asked)

    @app.get("/health")
    async def health() -> HealthStatus:  # not one of the threads in which questions wait
        """Who is connected: the status is 'ok' with the coordinator and all secondaries, else 'partial'."""
        coordinator, there = predictor.coordinator_online, predictor.online()
        status = "ok" if coordinator and all(there.values()) else "partial"
        return HealthStatus(status=status, coordinator=coordinator, secondaries=there)

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    def page() -> HTMLResponse:
        text = files("fedsim.serving").joinpath("serving.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    app.add_exception_handler(FedSimError, _error_response)
    app.openapi = lambda: {**FastAPI.openapi(app), "x-example": dict.fromkeys(predictor.columns)}  # type: ignore[method-assign]
    return app


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


def predict_records(predictor: Predictor, asked: PredictionRequest) -> PredictionResponse:
    """Predictions for records as they come in JSON."""
    columns = predictor.columns
    for record in asked.records:
        missing = [column for column in columns if column not in record]
        if missing:
            raise InputError(f"a record has no '{missing[0]}'; the columns are {', '.join(columns)}")
    frame = pl.DataFrame({column: _to_series([record[column] for record in asked.records]) for column in columns})
    found = predictor.predict(frame)
    shares = None
    if found.probabilities is not None:
        names = [str(name) for name in found.classes]
        shares = [dict(zip(names, row, strict=True)) for row in found.probabilities.tolist()]
    return PredictionResponse(
        predictions=found.values, probabilities=shares, by=found.by, away=list(found.away), reason=found.reason
    )


def _to_series(values: list[JsonCell]) -> pl.Series:
    """A column of JSON values: numbers where all are numbers, else text."""
    plain = all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)
    if plain:
        return pl.Series(values, dtype=pl.Float64)
    return pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)


def _require_token(token: str) -> Any:
    def check(authorization: Annotated[str, Header()] = "") -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "give the token as 'Authorization: Bearer ...'")

    return check


async def _error_response(request: Request, fault: Exception) -> JSONResponse:
    status = next((code for kind, code in STATUS_CODES if isinstance(fault, kind)), 500)
    told = public_reason(fault) if status == 500 else str(fault)
    return JSONResponse({"detail": told}, status_code=status)
