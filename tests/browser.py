"""A page as a reader's browser shows it: what it complains of and asks for, whether it is too wide."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import chromium

SCREENSHOTS = Path(__file__).parents[1] / "build" / "screenshots"
HEIGHT, PHONE, TALLEST = 900, 600, 16_000
PAINTED = (
    "document.fonts.ready.then(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))))"
)
UNTIL = """new Promise((done, give_up) => {{
  const end = Date.now() + 20000;
  const look = () => ({ready}) ? done() : Date.now() > end ? give_up(new Error("never ready")) : setTimeout(look, 20);
  look();
}})"""
INSIDE = ("data:", "blob:", "about:")

needs_browser = pytest.mark.skipif(chromium.found() is None, reason="no Chromium is installed: pages are not looked at")


@dataclass(frozen=True)
class Page:
    """What a browser made of a page."""

    errors: list[str]
    """What the console shows in red, and exceptions that nobody caught."""
    requests: list[str]
    """Addresses asked for outside the page: for a file every other address, for a server those of others."""
    overflows: bool
    """Whether one has to scroll sideways."""
    text: str
    """What a reader sees."""
    screenshot: Path
    """The whole page as PNG, under ``build/screenshots``."""


def browser_page(address: str | Path, width: int = 400, *, act: str = "", ready: str = "true", media: str = "") -> Page:
    """Open a file or an ``http://127.0.0.1`` address in a window that is ``width`` pixels wide (a phone below 600).

    ``act`` is JavaScript run after loading, ``ready`` an expression that is true once the page is complete; ``media``
    may be ``print``, as a reader has it who likes dark pages. A browser that ends by itself is replaced once.
    """
    url = address.absolute().as_uri() if isinstance(address, Path) else address
    steps = [act, UNTIL.format(ready=ready), PAINTED]
    try:
        return _opened(chromium.running(), url, width, steps, media)
    except chromium.GoneError:
        return _opened(chromium.running(), url, width, steps, media)


def _opened(browser: chromium.Chromium, url: str, width: int, steps: list[str], media: str) -> Page:
    tab = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session: str = browser.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
    try:
        if media:
            dark = [{"name": "prefers-color-scheme", "value": "dark"}]
            browser.call("Emulation.setEmulatedMedia", session, media=media, features=dark)
        return _looked_at(browser, session, url, width, steps)
    finally:
        browser.call("Target.closeTarget", targetId=tab)
        browser.forget(session)


def _looked_at(browser: chromium.Chromium, session: str, url: str, width: int, steps: list[str]) -> Page:
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable", session)
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < PHONE}
    browser.call("Emulation.setDeviceMetricsOverride", session, **size)
    browser.call("Page.navigate", session, url=url)
    browser.wait_for("Page.loadEventFired", session)
    for step in filter(None, steps):
        _value(browser, session, step)
    text = _value(browser, session, "document.body.innerText")
    wide = _value(browser, session, "document.documentElement.scrollWidth")
    picture = _screenshot(browser, session, url, width)
    events = browser.events(session)
    return Page(
        errors=[line for event in events for line in _complaint(event)],
        requests=[asked for event in events for asked in _asked(event) if _outside(asked, url)],
        overflows=int(str(wide)) > width,
        text=str(text),
        screenshot=picture,
    )


def _value(browser: chromium.Chromium, session: str, expression: str) -> object:
    wish = {"expression": expression, "awaitPromise": True, "returnByValue": True}
    answer = browser.call("Runtime.evaluate", session, **wish)
    if "exceptionDetails" in answer:
        raise RuntimeError(_thrown(answer["exceptionDetails"]))
    return answer["result"].get("value")


def _screenshot(browser: chromium.Chromium, session: str, url: str, width: int) -> Path:
    content = browser.call("Page.getLayoutMetrics", session)["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": content["width"], "height": min(content["height"], TALLEST), "scale": 1}
    taken = browser.call("Page.captureScreenshot", session, clip=clip, captureBeyondViewport=True)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("::")[2]
    name = re.sub(r"\W+", "-", f"{test}-{Path(urlsplit(url).path).stem}").strip("-")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    file = SCREENSHOTS / f"{name}-{width}.png"
    file.write_bytes(base64.b64decode(taken["data"]))
    return file


def _complaint(event: chromium.Event) -> list[str]:
    about = event["params"]
    match event["method"]:
        case "Runtime.exceptionThrown":
            return [_thrown(about["exceptionDetails"])]
        case "Runtime.consoleAPICalled" if about["type"] in ("error", "assert"):
            return [" ".join(str(part.get("value", part.get("description"))) for part in about["args"])]
        case "Log.entryAdded" if about["entry"]["level"] == "error":
            return [f"{about['entry']['text']} {about['entry'].get('url', '')}".strip()]
    return []


def _thrown(details: chromium.Event) -> str:
    return str(details.get("exception", {}).get("description") or details["text"])


def _asked(event: chromium.Event) -> list[str]:
    if event["method"] == "Network.webSocketCreated":
        return [event["params"]["url"]]
    return [event["params"]["request"]["url"]] if event["method"] == "Network.requestWillBeSent" else []


def _outside(asked: str, url: str) -> bool:
    own, other = urlsplit(url), urlsplit(asked)
    if asked.startswith(INSIDE):
        return False
    if own.scheme == "file":
        return (other.scheme, other.path) != (own.scheme, own.path)
    return other.netloc != own.netloc
