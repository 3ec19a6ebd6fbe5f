"""The paper's hdb as a job of three parties in a folder: flats, schools, and a coordinator between them.

The tables are read from the folder ``FEDSIM_DATA`` (default ``data``). Locations are encoded as filters and linked
without noise. The key and the coordinator's secret are always the same, so that runs of one job in different folders
train on the same numbers in the same order.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedsim.cli.demo import free_ports
from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.linkage.encoding import Key
from fedsim.protocol.messages import Party, Role
from fedsim.runs.run_folder import run_path
from fedsim_lab.datasets.dataset_registry import find_datasets
from fedsim_ops.authority import issue_certificates

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("FEDSIM_DATA", ROOT / "data"))
PARTNERS = {"paper": 50, "modern": 20}
SECRET = bytes(range(32))

JOB = """
name = "hdb"
seed = {seed}
coordinator = {{ name = "notary", address = "127.0.0.1:{port}" }}
primary = {{ name = "flats", address = "127.0.0.1:{other_port}" }}
task = {{ kind = "regression" }}

[training]
preset = "{preset}"
epochs = {epochs}
wire = "{wire}"
threads = 1
"""
SECONDARY = """
[secondaries.{name}]
k = {k}

[secondaries.{name}.schema]
version = 1
fields = [
  {{ column = "lat", encoding = {{ kind = "numeric", low = 1.2, high = 1.5, threshold = 0.02 }} }},
  {{ column = "lon", encoding = {{ kind = "numeric", low = 103.6, high = 104.1, threshold = 0.02 }} }},
]
"""
PARTY = """
name = "{name}"
role = "{role}"
device = "{device}"
folder = "{name}-run"
tls = {{ authority = "certs/ca.pem", certificate = "certs/{role}-{name}.pem", key = "certs/{role}-{name}.key" }}
policy = {{ approve = ["{hash}"] }}
"""
TABLE = """
data = {{ file = "{file}" }}
linkage = {{ key = "linkage.key" }}
features = {{ drop = {drop} }}
"""


@dataclass(frozen=True)
class Terms:
    """What differs between the jobs that are compared."""

    preset: str
    epochs: int
    wire: str = "float32"
    seed: int = 0
    device: str = "cpu"  # of the primary
    secondaries: int = 1  # all with the same schools


@dataclass(frozen=True)
class Hdb:
    """A job and its parties, to be run from their files."""

    folder: Path
    job: Job

    @classmethod
    def read(cls, folder: Path) -> Hdb:
        return cls(folder, read_job(folder / "job.toml"))

    def path(self, party: Party) -> Path:
        """Return the path of a party's file."""
        return self.folder / f"{party.name}.toml"

    def own(self, role: Role) -> PartyFile:
        """Return the file of the one party with this role."""
        return read_party_file(next(self.path(party) for party in self.job.parties if party.role is role))

    def kept(self, role: Role) -> Path:
        """Return the folder in which that party stores its files of the job."""
        return run_path(self.job, self.own(role))


def have_hdb() -> bool:
    """Return whether the real tables are available."""
    return (DATA / "hdb").is_dir()


def write_hdb(folder: Path, terms: Terms) -> Hdb:
    """Write all files of a job into a new folder."""
    folder.mkdir()
    (folder / "job.toml").write_text(_job(terms))
    found = Hdb.read(folder)
    for party in found.job.parties:
        device = terms.device if party.role is Role.PRIMARY else "cpu"
        words = PARTY.format(name=party.name, role=party.role, hash=found.job.hash, device=device)
        found.path(party).write_text(words + _table(party.role))
    issue_certificates(folder / "certs", found.job.parties, datetime.now(UTC))
    Key(SECRET).write(folder / "linkage.key")
    for party in found.job.parties:
        secret = run_path(found.job, read_party_file(found.path(party))) / "secret"
        secret.parent.mkdir(parents=True)
        secret.write_text(SECRET.hex())
    return found


def _job(terms: Terms) -> str:
    port, other_port = free_ports(2)
    names = ["schools", *(f"schools{number}" for number in range(2, terms.secondaries + 1))]
    lists = [SECONDARY.format(name=name, k=PARTNERS[terms.preset]) for name in names]
    return JOB.format(**vars(terms), port=port, other_port=other_port) + "".join(lists)


def _table(role: Role) -> str:
    """Return the sections of the file of a party that has data."""
    if role is Role.COORDINATOR:
        return ""
    flats, schools = next(found.paths for found in find_datasets(DATA) if found.about.name == "hdb").values()
    if role is Role.SECONDARY:
        return TABLE.format(file=schools.resolve(), drop=json.dumps(["school_name"]))
    return TABLE.format(file=flats.resolve(), drop="[]") + 'label = { column = "resale_price" }\n'
