"""Reports for people: self-contained HTML pages, model cards, and the formatting that pages and terminal share."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports

if TYPE_CHECKING:
    from fedsim.report.model_charts import plot_gates
    from fedsim.report.run_report import write_report

__all__ = ["plot_gates", "write_report"]

# Most commands format text with this package, and torch takes seconds.
__getattr__ = lazy_exports(__name__, {"model_charts": ["plot_gates"], "run_report": ["write_report"]})
