"""Watch a running party: metrics for Prometheus and log lines in JSON.

A scrape reads what the party keeps anyway: its progress, its ledger and its sessions. One observer adds what only
happens once, such as the duration of a step. Nothing exported is a value of a record: there are counts, durations,
means over a split, and figures over at least ``MIN_RECORDS`` records. Labels come from the code and from the job, never
from a table or a peer. The package of the extra ``telemetry`` is imported only if the party file asks for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.errors import FedSimError, SettingError
from fedsim.linkage.soft_linkage import QUANTILES
from fedsim.protocol.addresses import split_address
from fedsim.protocol.messages import Phase, Role
from fedsim.protocol.tls import is_loopback
from fedsim.version import VERSION

if TYPE_CHECKING:
    from fedsim.runtime.party_context import PartyContext

log = logging.getLogger("fedsim.parties")

HASH_DIGITS = 12  # of a job in metrics and logs
MIN_RECORDS = 100  # behind a figure of links
MAX_LABELS = 100  # values of one label; further ones are counted as OTHER
OTHER = "other"
STEP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUEST_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PATHS = ("/predict", "/health")


@dataclass(frozen=True)
class MetricDoc:
    """What a metric is: ``counter``, ``gauge`` or ``histogram``, its meaning, its labels, and where it is exported."""

    kind: str
    meaning: str
    labels: tuple[str, ...] = ()
    where: str = "every role"


_PRIMARY, _SERVE, _RELAY = "primary", "`fedsim serve`", "`fedsim relay --metrics`"
# The reference page of metrics is generated from this table.
METRICS: dict[str, MetricDoc] = {
    "fedsim_info": MetricDoc("gauge", "Always 1.", ("version", "party", "role", "job")),
    "fedsim_state": MetricDoc("gauge", "1 for the current state: running, done, stopped or failed.", ("state",)),
    "fedsim_phase": MetricDoc("gauge", "1 for the current phase, 0 for phases that have ended.", ("phase",)),
    "fedsim_phase_seconds": MetricDoc("gauge", "Seconds spent in a phase so far.", ("phase",)),
    "fedsim_bytes_total": MetricDoc(
        "counter", "Bytes of all frames by message; sent or received.", ("direction", "kind", "peer_role")
    ),
    "fedsim_frames_total": MetricDoc(
        "counter", "Frames by message; sent or received.", ("direction", "kind", "peer_role")
    ),
    "fedsim_peer_connected": MetricDoc("gauge", "1 while a party of the job is connected.", ("peer", "peer_role")),
    "fedsim_reconnects_total": MetricDoc("counter", "Connections after the first with each party.", ("peer_role",)),
    "fedsim_waiting_parties": MetricDoc("gauge", "Parties that have kept this one waiting for some seconds."),
    "fedsim_queue_messages": MetricDoc("gauge", "Messages received and not handled yet.", ("peer_role",)),
    "fedsim_unacknowledged_bytes": MetricDoc("gauge", "Bytes sent and not acknowledged yet.", ("peer_role",)),
    "fedsim_events_total": MetricDoc("counter", "Entries of the audit log by event.", ("event",)),
    "fedsim_errors_total": MetricDoc("counter", "Errors that were logged or ended the party, by code.", ("code",)),
    "fedsim_log_lines_total": MetricDoc("counter", "Log lines by level.", ("level",)),
    "fedsim_steps_total": MetricDoc("counter", "Training steps done.", where="primary, secondary"),
    "fedsim_step_seconds": MetricDoc("histogram", "Duration of a training step.", where=_PRIMARY),
    "fedsim_epoch": MetricDoc("gauge", "Epochs done.", where=_PRIMARY),
    "fedsim_epochs": MetricDoc("gauge", "Maximum number of epochs.", where=_PRIMARY),
    "fedsim_loss": MetricDoc("gauge", "Mean loss of the last epoch: training or validation.", ("part",), _PRIMARY),
    "fedsim_validation": MetricDoc("gauge", "Validation metric of the last epoch.", ("metric",), _PRIMARY),
    "fedsim_linked_records": MetricDoc(
        "gauge", "Records linked so far; a coordinator counts equal ones once.", ("list",)
    ),
    "fedsim_records_to_link": MetricDoc("gauge", "Records to link.", ("list",)),
    "fedsim_link_similarity": MetricDoc(
        "gauge", "Quantiles of the scaled similarity to the best partner.", ("list", "quantile"), _PRIMARY
    ),
    "fedsim_link_share": MetricDoc(
        "gauge",
        "Figures of link quality: ones in filters (fill), lists that end in ties (tied), records without a near "
        "partner (far), mean probability of no match (unmatched).",
        ("list", "figure"),
        _PRIMARY,
    ),
    "fedsim_predicted_records_total": MetricDoc("counter", "Records predicted, by model.", ("model",), _SERVE),
    "fedsim_requests_total": MetricDoc("counter", "Requests answered.", ("path", "status"), _SERVE),
    "fedsim_request_seconds": MetricDoc("histogram", "Duration of a request to `/predict`.", where=_SERVE),
    "fedsim_requests_in_progress": MetricDoc("gauge", "Requests that wait or are being answered.", where=_SERVE),
    "fedsim_refused_total": MetricDoc("counter", "Requests refused, by the code of the error.", ("code",), _SERVE),
    "fedsim_relay_registered": MetricDoc("gauge", "Parties that wait for callers.", (), _RELAY),
    "fedsim_relay_pairs": MetricDoc("gauge", "Joined connections that are open.", (), _RELAY),
    "fedsim_relay_pairs_total": MetricDoc("counter", "Connections joined so far.", (), _RELAY),
    "fedsim_relay_bytes_total": MetricDoc("counter", "Encrypted bytes passed on.", (), _RELAY),
}


class TimeHistogram:
    """Counts durations by upper bound, as Prometheus does."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.total, self._counts, self._lock = 0.0, [0] * (len(self.bounds) + 1), threading.Lock()

    def add(self, seconds: float) -> None:
        """Count one duration."""
        with self._lock:
            self._counts[bisect_left(self.bounds, seconds)] += 1
            self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return upper bounds and how many durations each covers.

        >>> times = TimeHistogram([0.1, 1])
        >>> times.add(0.5)
        >>> times.buckets()
        [('0.1', 0), ('1', 1), ('+Inf', 1)]
        """
        with self._lock:
            return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self._counts), strict=True))


@dataclass(frozen=True)
class MetricSample:
    """The value of a metric of ``METRICS``, with the values of its labels in their order."""

    name: str
    value: float | TimeHistogram
    labels: tuple[str, ...] = ()


class LabelCounter:
    """Counts by the value of a label; there are never more than ``MAX_LABELS`` values."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()

    def add(self, *labels: str, amount: int = 1) -> None:
        """Count an event."""
        with self._lock:
            known = labels in self._counts or len(self._counts) < MAX_LABELS
            self._counts[labels if known else (OTHER,) * len(labels)] += amount

    def samples(self, name: str) -> list[MetricSample]:
        """Return the counts as samples of a metric."""
        with self._lock:
            return [MetricSample(name, count, labels) for labels, count in self._counts.items()]


# Metrics


@contextmanager
def serve_metrics(address: str, samples: Callable[[], Iterable[MetricSample]]) -> Iterator[str]:
    """Serve metrics over HTTP until the block ends; yields the URL.

    Parameters
    ----------
    address
        Host and port; port 0 stands for any free one.
    samples
        Called for every scrape; the names are those of ``METRICS``.
    """
    try:
        client = import_module("prometheus_client")
    except ImportError as error:
        message = "telemetry.metrics requires the module prometheus_client; install fedsim-vfl[telemetry]"
        raise SettingError(message, code="missing-package", package="prometheus_client") from error
    registry = client.CollectorRegistry()
    registry.register(_SampleCollector(samples))
    client.ProcessCollector(registry=registry)
    host, port = split_address(address)
    try:
        server, thread = client.start_http_server(port, host, registry)
    except OSError as error:
        reason = error.strerror or "no such address"
        message = f"cannot serve metrics at {address}: {reason}; choose another address"
        raise SettingError(message, code="cannot-listen") from error
    if not is_loopback(address):
        log.warning("metrics at %s can be read without a password by anyone who can reach this address", address)
    try:
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
        log.info("metrics at %s", url)
        yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True, eq=False)
class _SampleCollector:
    samples: Callable[[], Iterable[MetricSample]]

    def collect(self) -> list[Any]:
        core = import_module("prometheus_client.core")
        kinds = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        families: dict[str, Any] = {}
        for sample in self.samples():
            doc = METRICS[sample.name]
            if sample.name not in families:
                families[sample.name] = kinds[doc.kind](sample.name, doc.meaning, labels=doc.labels)
            if isinstance(sample.value, TimeHistogram):
                families[sample.name].add_metric(sample.labels, sample.value.buckets(), sample.value.total)
            else:
                families[sample.name].add_metric(sample.labels, sample.value)
        return list(families.values())


@dataclass(eq=False)
class ServedRequest:
    """A request while it is answered; ``code`` is that of the error it was refused with."""

    path: str
    status: int = 500
    code: str = ""


@dataclass(eq=False)
class PartyTelemetry:
    """Observes one party, and turns what it keeps into samples and log lines."""

    context: PartyContext
    step_times: TimeHistogram = field(default_factory=lambda: TimeHistogram(STEP_BOUNDS))
    request_times: TimeHistogram = field(default_factory=lambda: TimeHistogram(REQUEST_BOUNDS))
    counts: dict[str, LabelCounter] = field(default_factory=dict)
    in_progress: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str, *labels: str, amount: int = 1) -> None:
        """Count an event of a metric."""
        with self._lock:
            counter = self.counts.setdefault(name, LabelCounter())
        counter.add(*labels, amount=amount)

    def entered(self, name: str) -> None:
        """A phase has begun; see :class:`fedsim.runs.run_folder.ProgressObserver`."""
        own = self.context.party_file
        for handler in logging.getLogger("fedsim").handlers:
            if isinstance(handler.formatter, JsonLogFormatter):
                handler.formatter.phases |= {own.name: name, str(own.party): name}

    def stepped(self, step: int, seconds: float) -> None:
        """A training step has ended."""
        self.step_times.add(seconds)

    def epoch_ended(self, epoch: Mapping[str, Any]) -> None:
        """An epoch has ended."""
        if self.context.party_file.telemetry.logs == "json":  # instead of the progress bar
            figures = {"epoch": epoch["number"], "loss": epoch["loss"], "seconds": epoch["seconds"]}
            figures |= {f"validation_{name}": value for name, value in epoch["validation"].items()}
            total = self.context.progress.training["epochs"]
            log.info("epoch %d of %d", epoch["number"], total, extra={"fields": figures})

    def predicted(self, n_records: int, model: str) -> None:
        """Records were predicted by a model."""
        self.count("fedsim_predicted_records_total", model, amount=n_records)

    @contextmanager
    def request(self, path: str) -> Iterator[ServedRequest]:
        """Follow one HTTP request."""
        request, began = ServedRequest(path if path in PATHS else OTHER), time.perf_counter()
        with self._lock:
            self.in_progress += 1
        try:
            yield request
        finally:
            seconds = time.perf_counter() - began
            with self._lock:
                self.in_progress -= 1
            self.count("fedsim_requests_total", request.path, str(request.status))
            if request.code:
                self.count("fedsim_refused_total", request.code)
            if request.path == PATHS[0]:
                self.request_times.add(seconds)

    def samples(self) -> Iterator[MetricSample]:
        """Return everything for one scrape."""
        context = self.context
        own, job = context.party_file, context.job
        yield MetricSample("fedsim_info", 1, (VERSION, own.name, own.role.value, job.hash[:HASH_DIGITS]))
        yield from self._progress_samples()
        yield from self._link_samples()
        yield from self._traffic_samples()
        with self._lock:
            counters = list(self.counts.items())
        for name, counter in counters:
            yield from counter.samples(name)
        if context.connection.serves_predictions and own.role is Role.PRIMARY:
            yield MetricSample("fedsim_requests_in_progress", self.in_progress)
            yield MetricSample("fedsim_request_seconds", self.request_times)

    def _progress_samples(self) -> Iterator[MetricSample]:
        progress = self.context.progress
        progress.follow(self.context.connection.ledger.entries())
        yield MetricSample("fedsim_state", 1, (progress.state,))
        phases, seconds = progress.phases(), Counter[str]()
        for phase in phases:
            seconds[phase["name"]] += phase["seconds"]
        for name, spent in seconds.items():
            yield MetricSample("fedsim_phase", float(name == phases[-1]["name"]), (name,))
            yield MetricSample("fedsim_phase_seconds", spent, (name,))
        if training := progress.training:
            yield MetricSample("fedsim_steps_total", training["steps"])
            yield MetricSample("fedsim_step_seconds", self.step_times)
            yield MetricSample("fedsim_epochs", training["epochs"])
            yield MetricSample("fedsim_epoch", len(training["history"]))
            for epoch in training["history"][-1:]:
                yield MetricSample("fedsim_loss", epoch["loss"], ("training",))
                yield MetricSample("fedsim_loss", epoch["validation_loss"], ("validation",))
                for metric, value in epoch["validation"].items():
                    yield MetricSample("fedsim_validation", value, (metric,))

    def _link_samples(self) -> Iterator[MetricSample]:
        progress = self.context.progress
        for name, facts in progress.linking.items():
            yield MetricSample("fedsim_linked_records", facts["done"], (name,))
            yield MetricSample("fedsim_records_to_link", facts["total"], (name,))
        for name, quality in progress.links.items():
            yield MetricSample("fedsim_linked_records", quality["records"], (name,))
            if quality["records"] >= MIN_RECORDS:
                for quantile, value in zip(QUANTILES, quality["similarity"], strict=True):
                    yield MetricSample("fedsim_link_similarity", round(value, 2), (name, str(quantile)))
                for figure, share in quality["shares"].items():
                    if share is not None:
                        yield MetricSample("fedsim_link_share", share, (name, figure))

    def _traffic_samples(self) -> Iterator[MetricSample]:
        connection, roles = self.context.connection, {str(party): party.role.value for party in self.context.others}
        totals: dict[tuple[str, str, str], list[int]] = {}
        welcomes = Counter[str]()
        for entry in connection.ledger.entries():
            sent = entry.sender == str(connection.party)
            peer = entry.receiver if sent else entry.sender
            total = totals.setdefault(("sent" if sent else "received", entry.kind, roles.get(peer, OTHER)), [0, 0])
            total[0], total[1] = total[0] + entry.messages, total[1] + entry.bytes
            if entry.kind == "welcome":
                welcomes[peer] += entry.messages
            if entry.kind == "gradients" and not sent and entry.phase == Phase.TRAIN.value:
                yield MetricSample("fedsim_steps_total", entry.messages)
        for labels, (frames, size) in totals.items():
            yield MetricSample("fedsim_frames_total", frames, labels)
            yield MetricSample("fedsim_bytes_total", size, labels)
        sessions = self.context.sessions()
        reconnects, queued, unacknowledged = Counter[str](), Counter[str](), Counter[str]()
        for party in self.context.others:
            own = [session for session in sessions if session.peer == party]
            reconnects[party.role.value] += max(0, welcomes[str(party)] - 1)
            queued[party.role.value] += sum(session.unread for session in own)
            unacknowledged[party.role.value] += sum(session.unacknowledged_bytes for session in own)
            connected = any(session.connected for session in own)
            yield MetricSample("fedsim_peer_connected", float(connected), (party.name, party.role.value))
        for role in reconnects:
            yield MetricSample("fedsim_reconnects_total", reconnects[role], (role,))
            yield MetricSample("fedsim_queue_messages", queued[role], (role,))
            yield MetricSample("fedsim_unacknowledged_bytes", unacknowledged[role], (role,))
        yield MetricSample("fedsim_waiting_parties", len(connection.waits))


@contextmanager
def observe_party(context: PartyContext) -> Iterator[PartyTelemetry]:
    """Watch a party until the block ends, as its file asks for; an error that ends the block is counted.

    Parameters
    ----------
    context
        The running party.
    """
    settings, connection = context.party_file.telemetry, context.connection
    record_event = connection.record_event

    def count_event(event: str, facts: Mapping[str, Any]) -> object:
        telemetry.count("fedsim_events_total", event)
        return record_event(event, facts)

    telemetry = PartyTelemetry(context)
    with ExitStack() as stack:
        handler = _LogCounter(telemetry)
        logging.getLogger("fedsim").addHandler(handler)
        stack.callback(logging.getLogger("fedsim").removeHandler, handler)
        connection.record_event, context.progress.observer = count_event, telemetry
        telemetry.entered(context.progress.stages[-1].name)
        if settings.metrics:
            try:
                stack.enter_context(serve_metrics(settings.metrics, telemetry.samples))
            except SettingError as error:
                if error.code != "cannot-listen":
                    raise
                log.warning("%s; the party continues without metrics", error)  # it would end the job of all parties
        try:
            yield telemetry
        except BaseException as error:
            telemetry.count("fedsim_errors_total", _error_code(error))
            raise
        finally:
            context.progress.observer = None


# Log lines


def _error_code(error: BaseException) -> str:
    """Return the code of an error, or of another exception its type."""
    return (error.code if isinstance(error, FedSimError) else "") or type(error).__name__


def _error_codes(record: logging.LogRecord) -> list[str]:
    """Return the codes of the errors that a warning or worse is about."""
    if record.levelno < logging.WARNING:
        return []
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = [record.exc_info[1]] if record.exc_info and record.exc_info[1] else []
    return [_error_code(error) for error in (*arguments, *raised) if isinstance(error, BaseException)]


class JsonLogFormatter(logging.Formatter):
    """Writes one JSON object per line: time, level, party, job, phase, message, fields and, of an error, a traceback.

    Fields are those of ``extra={"fields": ...}`` and the code of an error. The text of an exception of another library
    may contain a record: only its type and places are written.

    Parameters
    ----------
    job
        The hash of the job, of which the first digits are written; empty for a process without a job.
    """

    writes_json = True  # the final error of a command is then written in JSON, too

    def __init__(self, job: str = "") -> None:
        super().__init__()
        self.job, self.phases = job[:HASH_DIGITS], dict[str, str]()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        party, fields = getattr(record, "party", ""), dict(getattr(record, "fields", {}))
        if codes := _error_codes(record):
            fields["code"] = codes[0]
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "party": party,
            "job": self.job,
            "phase": self.phases.get(party, Phase.JOIN.value if self.job else ""),
            "message": record.getMessage(),
            "fields": fields,
        }
        if record.exc_info and record.exc_info[1]:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)
            places = [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames]
            message = f": {error}" if isinstance(error, FedSimError) else ""
            line["traceback"] = [*places, f"{type(error).__name__}{message}"]
        return json.dumps(line, default=str)


class _LogCounter(logging.Handler):
    """Counts the log lines of one party, and the errors that they are about."""

    def __init__(self, telemetry: PartyTelemetry) -> None:
        super().__init__()
        self._telemetry = telemetry
        # With all parties in one process, each thread has the name of its party.
        self._others = {str(party) for party in telemetry.context.others}

    def emit(self, record: logging.LogRecord) -> None:
        if record.threadName in self._others:
            return
        self._telemetry.count("fedsim_log_lines_total", record.levelname.lower())
        for code in _error_codes(record):
            self._telemetry.count("fedsim_errors_total", code)
