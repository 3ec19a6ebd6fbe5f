"""Generate the reference of metrics from their table in the code."""

from __future__ import annotations

from fedsim_ops.telemetry import METRICS

LEAD = """# Metrics

What a party exports under `/metrics` if its file sets `telemetry.metrics`
([how to watch a party](../howto/watch.md)). Prometheus adds `instance` and `job`, and the library `process_*` (memory,
processor time, open files). A counter starts at zero with the process.

| metric | kind | labels | where | meaning |
|---|---|---|---|---|"""


def metrics_page() -> str:
    """Return the page with one row per metric."""
    rows = [
        f"| `{name}` | {doc.kind} | {', '.join(f'`{label}`' for label in doc.labels)} | {doc.where} | {doc.meaning} |"
        for name, doc in METRICS.items()
    ]
    return "\n".join([LEAD, *rows, ""])
