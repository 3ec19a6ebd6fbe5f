"""Our pages in a real browser: no complaint, no request to outside, readable on a phone and on a desk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import uvicorn

import chromium
from browser import Page, browser_page, needs_browser
from fedsim.cli.demo import free_ports
from fedsim.config.stored_audit import Adversary, AttackKind, Victim
from fedsim.protocol.transport import InProcessTransport
from fedsim.report.model_charts import plot_gates
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predictor import Predictor
from fedsim.runtime.run_local import run_local
from fedsim.training.explain import MergeImportance, WeightCurve
from fedsim_audit.attacks.attack_finding import AttackFinding, IntervalEstimate
from fedsim_audit.audit_page import audit_page
from fedsim_audit.audit_report import NEVER_ATTACKED, AuditReport, AuditRow, Guarantee
from fedsim_lab.tradeoff import TradeoffPoint, tradeoff_page
from fedsim_ops.service import create_app
from job_fixtures import lay_out, read_all, staying
from session_fixtures import PATIENCE, until

pytestmark = needs_browser
HOSTILE = '</script><script>console.error("ran")</script><img src=x onerror=console.error(1)> "left" & {{ 7 * 7 }}'
BAD = """<!doctype html><title>bad</title><p style="width: 900px">wide</p><img src="https://example.org/spy.png">
<script>console.error("first"); setTimeout(() => { throw new Error("second") })</script>"""


def audit_text() -> str:
    found = AttackFinding(
        "greedy",
        AttackKind.LIKELIHOOD,
        Adversary.PRIMARY,
        "share",
        IntervalEstimate(0.9, 0.8, 1.0),
        0.0,
        10,
        "all",
        {},
        1.0,
    )
    rows = (AuditRow(HOSTILE, Victim.SECONDARY, "its filter", found, Guarantee("tau=0.05", 0.05)),)
    return audit_page(AuditReport(HOSTILE, "a" * 64, 0.01, rows, NEVER_ATTACKED, ("a note",)))


def tradeoff_text() -> str:
    settings = [("none", 0.9, 20.0), ("tau = 0.1", 0.4, 21.0), ("tau = 0.01", 0.1, 30.0)]
    points = [
        TradeoffPoint(name, seed, gain, "greedy", "rmse", cost) for seed in (0, 1) for name, gain, cost in settings
    ]
    return tradeoff_page(points, title=HOSTILE)


TEXTS = {"audit": audit_text, "tradeoff": tradeoff_text}


def checked(page: Page) -> Page:
    assert (page.errors, page.requests, page.overflows) == ([], [], False), page.screenshot
    return page


@pytest.mark.parametrize("name", [*TEXTS, "gates"])
def test_a_report_is_quiet_inert_and_fits_a_phone_and_a_desk(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.html"
    if name == "gates":
        curve = WeightCurve(HOSTILE, np.linspace(-3, 3, 5), np.linspace(0, 1, 5))
        values = np.random.default_rng(0).random((20, 8))
        plot_gates([curve], [MergeImportance("schools", values)]).save(file)
    else:
        file.write_text(TEXTS[name](), encoding="utf-8")
    assert '<script>console.error("ran")</script>' in checked(browser_page(file, 400)).text
    checked(browser_page(file, 1200))


def test_a_bad_page_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(BAD, encoding="utf-8")
    page = browser_page(tmp_path / "bad.html", 400)
    assert page.requests == ["https://example.org/spy.png"]
    assert page.overflows
    assert [word for error in page.errors for word in ("first", "second") if word in error] == ["first", "second"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a trained job answers, with its partners online in threads of this process."""
    folder, (port,) = tmp_path_factory.mktemp("served"), free_ports(1)
    away = 'when_partner_is_away = "solo"'
    lay_out(folder, {"job": {"k = 5": "k = 8"}, "city": {away: f"{away}\nexplain = true"}})
    job, files = read_all(folder)
    run_local(job, list(files.values()))
    transport, desk = InProcessTransport(), ExitStack()
    with desk:
        for name in ("notary", "rentals"):
            desk.enter_context(staying(job, files[name], transport))
        post = desk.enter_context(open_party_context(job, files["city"], transport, software_versions()))
        style = resources.files("fedsim.report").joinpath("page.css").read_text(encoding="utf-8")
        app = create_app(Predictor(post, wait_seconds=PATIENCE), "a-token-of-24-characters", style=style)
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started)
        yield f"http://127.0.0.1:{port}/"
        server.should_exit = True
        thread.join(PATIENCE)


ASK = """byId("token").value = "a-token-of-24-characters";
byId("body").value = '{"records": [{"lat": 1.3, "lon": 103.8, "area": 80, "storey": 3, "age": 9}]}';
byId("ask").click()"""


def test_the_page_of_a_served_model_predicts(address: str) -> None:
    complete = 'byId("paths").rows.length > 1'
    answered = 'byId("answer").textContent.startsWith("200")'
    checked(browser_page(address, 1200, ready=complete))
    page = checked(browser_page(address, 400, act=ASK, ready=f"{complete} && {answered}"))
    assert '"by": "fedsim"' in page.text


READ = """new Promise(done => {
  byId("token").value = "a-token-of-24-characters";
  byId("token").dispatchEvent(new Event("change"));
  const look = () => byId("template").hidden ? setTimeout(look, 5) : done();
  look();
})"""


def test_the_page_of_a_served_model_asks_for_values_before_it_sends_a_record(address: str) -> None:
    act = f"{READ}.then(() => {{ byId('ask').click(); byId('template').click(); byId('ask').click(); }})"
    columns = "Object.keys(JSON.parse(byId('body').value).records[0]).join() === 'lat,lon,area,storey,age'"
    answered = "!/^[0-9]|waiting/.test(byId('answer').textContent)"
    assert checked(browser_page(address, 400, act=act, ready=f"{columns} && {answered}")).errors == []


def test_the_page_of_a_served_model_folds_all_but_the_most_important_partner_records(address: str) -> None:
    block = "document.querySelector('#explanations .card')"
    counts = (
        "[...document.querySelectorAll('#explanations table')].map(table => table.querySelectorAll('.track').length)"
    )
    # The average, five partner records, the sum of the others and the prediction; folded: all eight.
    ready = f"{block} && {counts}.join() === '8,10' && {block}.querySelectorAll('details:not([open])').length === 1"
    page = checked(browser_page(address, 400, act=f"byId('explain').checked = true; {ASK}", ready=ready))
    assert "3 further partner records" in page.text


def test_a_browser_that_died_is_replaced(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>page</title><p>here")
    dead = chromium.running()
    dead.kill()
    assert browser_page(page).text.strip() == "here"
    assert chromium.running() is not dead


def test_a_browser_that_dies_over_a_page_is_replaced(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>page</title><p>here")
    dying = chromium.running()
    monkeypatch.setattr(dying, "wait_for", lambda *_: dying.kill())
    assert browser_page(page).text.strip() == "here"
    assert chromium.running() is not dying


def test_a_page_that_no_browser_survives_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(chromium.Chromium, "wait_for", lambda browser, *_: browser.kill())
    with pytest.raises(chromium.GoneError, match="Chromium ended while"):
        browser_page(tmp_path / "page.html")
