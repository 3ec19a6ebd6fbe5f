"""The charts of a stored audit, for its own page and for the report of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedsim.config.stored_audit import BROKEN_VERDICT, Adversary
from fedsim.report import charts
from fedsim.report.formatting import format_number
from fedsim.report.page import Figure

ADVERSARY_KNOWLEDGE = {
    Adversary.PRIMARY: "It knows the links, the similarities, the activations and, as a party, the linkage key.",
    Adversary.SECONDARY: "It knows the gradients sent to it and its own network.",
    Adversary.COORDINATOR: "It knows the filters of all parties, but no key.",
}
MARKS_NOTE = "The short line marks blind guessing, the dashed line the upper bound that the job guarantees."


def attack_figures(findings: Sequence[Mapping[str, Any]], limit: float) -> list[Figure]:
    """Draw the success of all attacks, one figure per adversary, from the findings of an audit in JSON.

    Attacks that gain more than the limit, or break a guarantee, are red.
    """
    figures = []
    for adversary in Adversary:
        found = [finding for finding in findings if finding["adversary"] == adversary.value]
        if not found:
            continue
        several = len({finding["about"] for finding in findings}) > 1
        rows, cells = [], []
        for one in found:
            name = f"{one['attack']}, {one['about']}" if several else one["attack"]
            numbers = [one["score"]["value"], one["score"]["low"], one["score"]["high"], one["blind"]]
            value, low, high, guess = map(format_number, numbers)
            words, promised = f"{name}: {value} ({low} to {high}), guessing {guess}", one["promised_at_most"]
            bad = one["verdict"] == BROKEN_VERDICT or one["leak"] > limit
            middle, left, right, blind = (min(1.0, max(0.0, number)) for number in numbers)
            rows.append(
                charts.ChartRow(name, middle, value, (left, right), (), blind, promised, bad=bad, tooltip=words)
            )
            cells.append((name, value, f"{low} to {high}", guess))
        caption = f"{ADVERSARY_KNOWLEDGE[adversary]} {MARKS_NOTE}"
        labels = charts.ChartLabels(f"Attacks by the {adversary.value}", caption, "success", ("", ""))
        head = ("attack", "success", "95 % interval", "guessing")
        figures.append(replace(charts.rows_figure(rows, labels, include=(0.0, 1.0)), head=head, rows=tuple(cells)))
    return figures
