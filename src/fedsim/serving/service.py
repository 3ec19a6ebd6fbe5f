"""HTTP service of the primary: /predict, /health and a page that shows how to call them."""

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
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
JsonCell = str | float | int | bool | None


class PredictionRequest(BaseModel):
    """Records to predict, each with the features and identifiers of the training by column name."""

    model_config = ConfigDict(extra="forbid")
    records: Annotated[list[dict[str, JsonCell]], Field(min_length=1, max_length=MAX_RECORDS)]


class PredictionResponse(BaseModel):
    """Predictions in the order of the records.

    ``by`` is the method that predicted; ``solo`` means that a partner was offline and only own features were used.
    """

    predictions: list[Any]
    probabilities: list[dict[str, float]] | None = None
    by: str
    away: list[str] = []
    reason: str = ""


class HealthStatus(BaseModel):
    """Which parties are connected."""

    status: str
    coordinator: bool
    secondaries: dict[str, bool]


def create_app(predictor: Predictor, token: str | None = None) -> FastAPI:
    """Create the web application.

    Parameters
    ----------
    predictor
        Predicts the records of requests.
    token
        If given, /predict requires the header ``Authorization: Bearer TOKEN``.
    """
    title = f"FedSim: {predictor.context.job.name}"
    app = FastAPI(title=title, version=VERSION, docs_url=None, redoc_url=None)  # these pages load remote scripts

    def require_token(authorization: Annotated[str, Header()] = "") -> None:
        if token and not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "send the token in the header 'Authorization: Bearer TOKEN'")

    @app.post("/predict", dependencies=[Depends(require_token)] if token else [])
    def predict(request: PredictionRequest) -> PredictionResponse:
        """Predict up to 1,000 records."""
        columns = predictor.columns
        for record in request.records:
            missing = [column for column in columns if column not in record]
            if missing:
                message = f"a record has no '{missing[0]}'; the columns are {', '.join(columns)}"
                raise InputError(message, code="missing-column", column=missing[0])
        cells = {column: _to_series([record[column] for record in request.records]) for column in columns}
        found = predictor.predict(pl.DataFrame(cells))
        response = PredictionResponse(predictions=found.values, by=found.by, away=list(found.away), reason=found.reason)
        if found.probabilities is not None:
            names = [str(name) for name in found.classes]
            response.probabilities = [dict(zip(names, row, strict=True)) for row in found.probabilities.tolist()]
        return response

    @app.get("/health")
    async def health() -> HealthStatus:  # async: must not wait for a thread that predictions use
        """Report which parties are connected: 'ok' if all are, else 'partial'."""
        coordinator, secondaries = predictor.coordinator_online, predictor.online()
        status = "ok" if coordinator and all(secondaries.values()) else "partial"
        return HealthStatus(status=status, coordinator=coordinator, secondaries=secondaries)

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    def page() -> HTMLResponse:
        text = files("fedsim.serving").joinpath("serving.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    app.add_exception_handler(FedSimError, _error_response)
    app.openapi = lambda: {**FastAPI.openapi(app), "x-example": dict.fromkeys(predictor.columns)}  # type: ignore[method-assign]
    return app


def _to_series(values: list[JsonCell]) -> pl.Series:
    """Convert JSON values to numbers if all of them are numbers, else to text."""
    numeric = all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)
    if numeric:
        return pl.Series(values, dtype=pl.Float64)
    return pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)


async def _error_response(request: Request, error: Exception) -> JSONResponse:
    status = next((code for kind, code in STATUS_CODES if isinstance(error, kind)), 500)
    detail = public_reason(error) if status == 500 else str(error)
    return JSONResponse({"detail": detail}, status_code=status)
