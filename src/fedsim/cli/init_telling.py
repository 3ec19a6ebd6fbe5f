"""What ``fedsim init`` proposes, as lines for people and as one object for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedsim.party.proposal import Linking
from fedsim.party.proposed_files import Plan
from fedsim.party.toml_faults import cut

FEW, LONGEST = 8, 10_000
Told = dict[str, Any]


def plan_lines(plan: Plan, linked: Linking, notes: Sequence[str]) -> Iterator[str]:
    """How the parties link, what is learnt from what, and why; warnings last."""
    for pair, field in zip(linked.pairs, linked.fields, strict=True):
        both = " = ".join(dict.fromkeys(name for name in (pair.primary, pair.secondary) if name))
        reach = f", threshold {field.encoding.threshold:g}" if hasattr(field.encoding, "threshold") else ""
        yield line_of("link by", f"{both} ({field.encoding.KIND}, {field.encoding.bits:,} bits{reach})")
    for name, guess in (("label", plan.label), ("task", plan.task), ("split", plan.split)):
        if guess:
            yield line_of(name, f"{guess.word}, {guess.reason}")
    noise = f"tau {plan.tau:g}" if plan.tau else "none"
    yield line_of("partners", f"{plan.k} per record; noise on their similarities: {noise}")
    for role, own in plan.own.items():
        used, dropped = own.learning.columns + own.learning.linking, [name for name, _ in own.learning.dropped]
        left_out = f"; left out: {_few(dropped)}" if dropped else ""
        yield line_of("features", f"{plan.names()[role]}: {_few(used)}{left_out}")
    for note in notes:
        yield line_of("warning", note)


def plan_object(plan: Plan, linked: Linking, notes: Sequence[str]) -> Told:
    """The same without reasons."""
    fields = zip(linked.pairs, linked.fields, strict=True)
    return {
        "parties": plan.names(),
        "link_by": [{"primary": p.primary, "secondary": p.secondary, "kind": f.encoding.KIND} for p, f in fields],
        "label": plan.label.word if plan.label else None,
        "task": plan.task.word if plan.task else None,
        "split": plan.split.word,
        "k": plan.k,
        "tau": plan.tau,
        "batch_size": plan.batch,
        "features": {role: [*own.learning.columns, *own.learning.linking] for role, own in plan.own.items()},
        "left_out": {role: dict(own.learning.dropped) for role, own in plan.own.items()},
        "warnings": list(notes),
    }


def _few(columns: Sequence[str]) -> str:
    more = f" and {len(columns) - FEW} more" if len(columns) > FEW else ""
    return ", ".join(columns[:FEW]) + more


def line_of(name: str, value: str) -> str:
    """Names of columns and files cannot steer a terminal."""
    return cut(f"{name:<12} {value}", LONGEST)
