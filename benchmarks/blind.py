"""Link two tables with a blind coordinator: three processes, mutual TLS, names as filters of 1,024 bits.

Run it with ``fedsim lab bench blind``; cases are numbers of records in each table, 10,000 by default. The same job runs
with a plain coordinator, and both must produce the same links, bit for bit. Time and bytes cover only the linkage: from
the primary's first message until it has its links, with the other parties waiting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from fedsim.linkage.private_linkage import PrivateLinks, load_private_links
from fedsim.protocol.messages import Phase
from fedsim.runs.run_folder import PROGRESS_FILE, read_ledger
from fedsim_lab.faults.local_job import CITY, RENTALS, LocalJob, create_local_job
from fedsim_lab.faults.processes import cold

RECORDS, K, N_BITS = (10_000,), 20, 1024
SYLLABLES = ["ka", "ri", "mo", "ten", "sol", "ber", "lin", "dra", "vei", "hu", "pas", "non", "ged", "wil", "tor", "sha"]
SCHEMA = {"version": 1, "fields": [{"column": "name", "encoding": {"kind": "string", "bits": N_BITS}}]}
HEAD = (
    "| records | coordinator | linkage s | bytes on the wire | bytes per pair | peak memory MB: primary, secondary, "
    "coordinator | same links |",
    "|---|---|---|---|---|---|---|",
)


def tables(records: int) -> dict[str, pl.DataFrame]:
    """Return two tables of names; half of the second table are misspelt names of the first."""
    rng = np.random.default_rng(3)
    names = np.unique(["".join(rng.choice(SYLLABLES, 6)) for _ in range(2 * records)])
    names = rng.permutation(names)[: records + records // 2]
    ours, others = names[:records], names[records:]
    misspelt = [name[:2] + name[3:] for name in ours[: records - len(others)]]
    theirs = np.concatenate([others, misspelt])
    price, rent, zone = rng.normal(size=records), rng.normal(size=len(theirs)), ["none"] * records
    return {
        CITY: pl.DataFrame({"name": ours, "price": price, "area": rng.normal(size=records), "quarter": zone}),
        RENTALS: pl.DataFrame({"name": theirs, "rent": rent}),
    }


def run_job(place: LocalJob) -> tuple[float, int, list[int], PrivateLinks]:
    """Run every party as its owner would; return the seconds and bytes of the linkage, peak memory, and the links."""
    running = [cold(place.log(name), "party", place.job_path, place.path(name)) for name in place.names]
    codes = [process.wait() for process in running]
    if any(codes):
        raise RuntimeError("\n".join(place.log(name).read_text() for name in place.names))
    entries = {
        (entry.kind, entry.sender, entry.receiver): entry.bytes
        for name in (CITY, RENTALS)  # each frame is counted at both ends
        for entry in read_ledger(place.run(name))
        if entry.phase == Phase.LINK.value
    }
    facts = {name: json.loads((place.run(name) / PROGRESS_FILE).read_text()) for name in place.names}
    linking = facts[CITY]["linking"] or facts["notary"]["linking"]
    peaks = [max(stage["peak_bytes"] for stage in facts[name]["phases"]) for name in (CITY, RENTALS, "notary")]
    links = load_private_links(place.run(CITY) / "lists" / f"{RENTALS}.safetensors")
    return linking[RENTALS]["seconds"], sum(entries.values()), peaks, links


def measure(records: int) -> Iterator[str]:
    """Run the job with both kinds of coordinator."""
    terms = {"k": K, "tau": None, "metric": "hamming", "schema": SCHEMA}
    training = {"epochs": 1, "batch_size": 256}
    found: dict[str, PrivateLinks] = {}
    for kind in ("plain", "blind"):
        protection = {"coordinator": kind, "gradients": "none"}
        with TemporaryDirectory() as folder:
            place = create_local_job(
                Path(folder) / "job",
                tables=tables(records),
                secondaries={RENTALS: terms},
                training=training,
                protection=protection,
                network={"wait_seconds": 600},
            )
            seconds, n_bytes, peaks, found[kind] = run_job(place)
        one = found["plain"]
        same = np.array_equal(one.partner, found[kind].partner) and np.array_equal(one.vectors, found[kind].vectors)
        memory = ", ".join(f"{peak / 1e6:.0f}" for peak in peaks)
        size, pairs = f"{n_bytes / 1e6:,.1f} MB", n_bytes / records**2
        yield f"| {records:,} | {kind} | {seconds:.1f} | {size} | {pairs:.2f} | {memory} | {'yes' if same else 'NO'} |"


def main(cases: list[str] | None = None) -> None:
    """Print the table."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{os.cpu_count()} cores, load before {load}; K={K}, {N_BITS:,} bits, hamming\n")
    print("\n".join(HEAD))
    for records in map(int, cases or RECORDS):
        for line in measure(records):
            print(line, flush=True)


if __name__ == "__main__":
    main()
