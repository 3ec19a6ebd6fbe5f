"""Reports for people: self-contained HTML pages, model cards, and the formatting that pages and terminal share."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.report.gates_page import write_gates_page
    from fedsim.report.run_report import write_report

_HOMES = {"write_gates_page": "gates_page", "write_report": "run_report"}

__all__ = ["write_gates_page", "write_report"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because torch takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim.report' has no attribute '{name}'")
    return getattr(import_module(f"fedsim.report.{_HOMES[name]}"), name)
