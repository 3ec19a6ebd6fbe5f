"""Tables out of a real PostgreSQL server, started for these tests; they are skipped where none is installed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from typer.testing import CliRunner

from error_fixtures import raises
from fedsim.cli.agreement import approve_job
from fedsim.cli.app import app
from fedsim.cli.demo import free_ports
from fedsim.data.sql import SqlTable, parse_source
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError, InputError
from postgresql import obstacle, programs, unprivileged

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: PostgreSQL is not tested")
PASSWORD, CANARY = "hunter2", "Zaphod"
TABLES = """
create table flats (id int primary key, lat numeric(9,6), lon float8, sold date, seen timestamptz, new bool,
  "Größe" real, kind text, code uuid);
insert into flats values (1, 1.3, 103.8, '1984-07-31', '2020-01-01 02:00+08', true, 40.5, 'a',
  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'), (2, null, null, null, null, null, null, null, null);
create type colour as enum ('red', 'blue');
create table odd (tags int[], facts jsonb, photo bytea, late date, paint colour, nothing numeric);
insert into odd values ('{1}', '{}', 'x', 'infinity', 'red', 'NaN');
create table empty (a int);
create table "drop table flats; --" ("a ""b" int);
insert into "drop table flats; --" values (7);
create schema far; create table far.away (a int); insert into far.away values (1);
create table homes as select 1.3 + n * 0.001 as lat, 103.8 + (n % 9) * 0.01 as lon, 40 + n % 7 as area, n * n as price
  from generate_series(1, 60) as s(n);
create table lets as select 1.3 + n * 0.001 as lat, 103.8 + (n % 9) * 0.01 as lon, 900 + n % 11 as rent
  from generate_series(1, 60) as s(n);
create role guest login password 'guest'; grant usage on schema public to guest; grant select on empty to guest;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a throw-away server, without user and database."""
    if obstacle():
        pytest.skip(f"{obstacle()}: PostgreSQL is not tested")
    bin_, port = programs(), free_ports(1)[0]
    with TemporaryDirectory(prefix="fedsim-pg-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "pw").write_text(PASSWORD)
        (folder / "pw").chmod(0o644)
        data, quick = ["-D", str(folder / "data")], "-c fsync=off -c listen_addresses=127.0.0.1"
        wish = ["--username=owner", f"--pwfile={folder}/pw", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        subprocess.run([*unprivileged(), bin_ / "initdb", *data, *wish, "--no-sync"], check=True, capture_output=True)
        start = ["-w", "-l", str(folder / "log"), "-o", f"-p {port} -k {folder} {quick}", "start"]
        subprocess.run([*unprivileged(), bin_ / "pg_ctl", *data, *start], check=True, stdout=subprocess.DEVNULL)
        try:
            with psycopg.connect(f"postgresql://owner:{PASSWORD}@127.0.0.1:{port}/postgres") as connection:
                connection.execute(TABLES)
            yield f"127.0.0.1:{port}"
        finally:
            stop = [*data, "-m", "immediate", "stop"]
            subprocess.run([*unprivileged(), bin_ / "pg_ctl", *stop], check=True, stdout=subprocess.DEVNULL)


def asked(server: str, *, user: str = f"owner:{PASSWORD}", database: str = "postgres", **settings: str) -> SqlTable:
    return SqlTable(f"postgresql://{user}@{server}/{database}", **settings)


def refusal(source: SqlTable, columns: list[str] | None = None) -> FedSimError:
    with pytest.raises(FedSimError) as caught:
        source.read(columns)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert not any(word in sentence for word in (PASSWORD, CANARY, "owner"))
    assert caught.value.__cause__ is None
    return caught.value


def test_types_come_as_they_are_meant(server):
    first, second = asked(server, table="flats").read().rows()
    assert first[:4] == (1, 1.3, 103.8, date(1984, 7, 31))
    assert first[4].replace(tzinfo=None) == datetime(2019, 12, 31, 18, 0)
    assert first[5:] == (True, 40.5, "a", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
    assert second == (2, *[None] * 8)


def test_columns_are_chosen_quoted_and_ordered(server):
    assert asked(server, table="flats").read(["Größe", "id"]).columns == ["Größe", "id"]
    assert asked(server, table="drop table flats; --").read(['a "b']).item() == 7
    assert asked(server, table="far.away").read().item() == 1
    assert asked(server, table="odd").read(["paint", "nothing"]).dtypes == [pl.String, pl.Float64]


def test_many_batches_keep_their_order(server, monkeypatch):
    monkeypatch.setattr("fedsim_ops.sql_drivers.POSTGRES_BATCH", 7)
    numbers = asked(server, query="select n from generate_series(1, 50) as s(n) order by n desc; ").read()["n"]
    assert numbers.to_list() == list(range(50, 0, -1))


@pytest.mark.parametrize(
    ("settings", "columns", "code", "details"),
    [
        ({"table": "flat"}, None, "missing-table", {"suggestion": "flats"}),
        ({"table": "nowhere.flats"}, None, "missing-table", {}),
        ({"table": "flats"}, ["latt"], "missing-column", {"column": "latt", "suggestion": "lat"}),
        ({"table": "empty"}, None, "no-records", {}),
        ({"table": "odd"}, ["tags"], "wrong-type", {"column": "tags", "held": "int4[]"}),
        ({"table": "odd"}, ["facts"], "wrong-type", {"held": "jsonb"}),
        ({"table": "odd"}, ["photo"], "wrong-type", {"held": "bytea"}),
        ({"table": "odd"}, ["late"], "bad-data", {"state": ""}),
        ({"query": "select latt from flats"}, None, "missing-column", {}),
        ({"query": "select * from nowhere"}, None, "missing-table", {}),
        ({"query": f"select '{CANARY}'::int"}, None, "bad-data", {"state": "22P02"}),
        (
            {"query": "with gone as (delete from flats returning id) select * from gone"},
            None,
            "bad-data",
            {"state": "0A000"},
        ),
        ({"query": "select 1) as a; rollback; drop table flats; select (2"}, None, "bad-query", {}),
        ({"query": "select nextval('s') from flats"}, None, "missing-table", {}),
        ({"query": "selct 1"}, None, "bad-query", {}),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(server, settings, columns, code, details):
    error = refusal(asked(server, **settings), columns)
    assert (error.code, error.details | details) == (code, error.details)
    assert asked(server, table="flats").read().height == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"user": "owner:wrong"}, "wrong-password"),
        ({"user": "owner"}, "password-required"),
        ({"database": "nowhere"}, "missing-database"),
        ({"database": "postgres?sslmode=require"}, "ssl-mismatch"),
        ({"database": "postgres?colour=red"}, "bad-url"),
        ({"user": "guest:guest", "table": "flats"}, "no-permission"),
    ],
)
def test_a_server_that_refuses_is_told_without_its_own_words(server, change, code):
    assert refusal(asked(server, **{"table": "flats", **change})).code == code


def test_nobody_listening_is_told():
    assert refusal(asked(f"127.0.0.1:{free_ports(1)[0]}", table="flats")).code == "connection-refused"
    assert refusal(SqlTable("postgresql:///city?host=/nowhere", table="flats")).code == "no-socket"
    assert refusal(asked("nowhere.invalid", table="flats")).code == "unknown-host"


def test_the_password_may_be_in_the_environment(server, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert asked(server, user="owner", table="flats").read(["id"]).height == 2


def test_a_function_that_writes_is_refused(server):
    with psycopg.connect(f"postgresql://owner:{PASSWORD}@{server}/postgres") as connection:
        connection.execute("create function clear() returns int language sql as 'delete from flats returning id'")
    with raises(InputError, "read-only"):
        asked(server, query="select clear() as gone").read()
    assert asked(server, table="flats").read().height == 2


def test_init_writes_a_server_down_without_its_password(server, tmp_path, monkeypatch):
    url = f"postgresql://owner:{PASSWORD}@{server}/postgres"
    words = [
        "--primary",
        f"{url}#homes",
        "--secondary",
        f"{url}#lets",
        "--label",
        "price",
        "--yes",
        "--out",
        str(tmp_path),
    ]
    output = CliRunner().invoke(app, ["init", *words])
    written = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.toml"))
    assert output.exit_code == 0, output.exception
    assert PASSWORD not in output.output + written
    assert f'url = "postgresql://owner@{server}/postgres"\ntable = "homes"' in written
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert approve_job(tmp_path / "job.toml", tmp_path / "homes.toml", ask=lambda: True).approved


def test_a_query_on_the_command_line_is_asked_of_the_server(server):
    url = f"postgresql://owner:{PASSWORD}@{server}/postgres"
    source = parse_source(url, "select lat, price from homes where price > 2500 order by price")
    assert read_table(source)["price"].to_list() == [n * n for n in range(51, 61)]
    assert str(source) == f"the query in postgresql://{server}/postgres"
