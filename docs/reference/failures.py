"""Generate the reference of errors and exit codes from the error classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from fedsim import errors
from fedsim.cli import EXIT_CODE_MEANINGS
from prose import markdown

LEAD = """# Errors and exit codes

Messages go to standard error and state **the value seen, the rule it breaks, and how to fix it**. They name tables,
columns and row numbers, and never show an identifier, a feature, a label, a key or a password.

```text
error: k=50, but the secondary party has 12 records; choose k between 1 and 12
```

In Python, `error.code` names the kind of error (`"k-too-large"`) and the values are attributes (`error.limit`). Codes
are stable; wording is not. Other parties learn only the kind of a failure; details stay in the local log.

## Exit codes

| code | meaning |
|---|---|"""
SCRIPTS = """
In a script, exit code 2 needs attention and 3 another attempt:

```bash
until fedsim party job.toml rentals.toml --quiet; do
  [ $? -eq 3 ] || exit 1
  sleep 60
done
```

## Types

"""


def errors_page() -> str:
    """Return the page: exit codes, the error hierarchy, and every class."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield LEAD
    yield from (f"| {code:d} | {meaning} |" for code, meaning in EXIT_CODE_MEANINGS.items())
    yield SCRIPTS
    yield markdown(errors.__doc__)
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.FedSimError):
            yield f"### {name}\n\n{markdown(kind.__doc__)}"
