"""Write a bill of materials of the installed product: every package it needs, by name, version and licence (CycloneDX).

Only what the product requires is listed, not what tests and documentation need. The same environment produces the same
bytes: there is no timestamp, and the serial number is derived from the content.
"""

import json
import re
import sys
import uuid
from collections import deque
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from fedsim.storage.files import atomic_write, ensure_folder

PRODUCT = "fedsim-vfl"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def bill_of_materials(product: str = PRODUCT) -> dict[str, Any]:
    """Return the bill of an installed package and everything it requires here, without optional dependencies.

    >>> bill = bill_of_materials()
    >>> bill["bomFormat"], bill["metadata"]["component"]["name"]
    ('CycloneDX', 'fedsim-vfl')
    """
    found: dict[str, Distribution] = {}
    needs: dict[str, list[str]] = {}
    waiting = deque([_normal(product)])
    while waiting:
        name = waiting.popleft()
        if name in found:
            continue
        found[name] = distribution(name)
        needs[name] = sorted(set(_requirements(found[name])))
        waiting.extend(needs[name])
    own = _normal(product)
    components = [_component(name, package) for name, package in sorted(found.items()) if name != own]
    bill: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**_component(own, found[own]), "type": "application"}},
        "components": components,
        "dependencies": [
            {"ref": _purl(found[name], name), "dependsOn": [_purl(found[other], other) for other in needs[name]]}
            for name in sorted(found)
        ],
    }
    content = json.dumps(bill, sort_keys=True)
    return {**bill, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"}


def _requirements(package: Distribution) -> list[str]:
    """Return the names of installed packages that this one requires; a marker may exclude some on this machine."""
    names = []
    for text in package.requires or ():
        match = _NAME.match(text)
        if match is None or "extra ==" in text:
            continue
        try:
            distribution(match[0])
        except PackageNotFoundError:  # for another system or version of Python
            continue
        names.append(_normal(match[0]))
    return names


def _component(name: str, package: Distribution) -> dict[str, Any]:
    facts = package.metadata
    licence = next((facts[name] for name in ("License-Expression", "License") if name in facts), "")
    names = [line.removeprefix("License :: ") for line in facts.get_all("Classifier") or () if "License ::" in line]
    text = licence if licence and "\n" not in licence else "; ".join(names) or "not stated"
    return {
        "type": "library",
        "bom-ref": _purl(package, name),
        "name": name,
        "version": package.version,
        "purl": _purl(package, name),
        "licenses": [{"license": {"name": text[:200]}}],
    }


def _purl(package: Distribution, name: str) -> str:
    return f"pkg:pypi/{name}@{package.version}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Write the bill to the file that the command line names."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "sbom.json")
    ensure_folder(path.parent)
    bill = bill_of_materials()
    with atomic_write(path) as part:
        part.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"Wrote {path}: {len(bill['components'])} packages")


if __name__ == "__main__":
    main()
