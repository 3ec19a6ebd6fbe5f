"""A reader of metrics."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def scrape(address: str) -> bytes:
    """The metrics at an address, or nothing while nobody serves them."""
    try:
        with urlopen(f"http://{address}/metrics", timeout=300) as reply:
            return bytes(reply.read())
    except OSError:  # URLError among them
        return b""


def values(scraped: bytes, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name, by the values of their labels in the order of their names."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(scraped.decode())
        for sample in family.samples
        if sample.name == name
    }
