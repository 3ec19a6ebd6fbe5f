"""The reference of errors and exit codes, from the code that raises and returns them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from fedsim import errors
from fedsim.cli.exit_codes import EXIT_CODE_MEANINGS
from prose import markdown

LEAD = """# Errors and exit codes

A message is one sentence: **what was seen; which rule it breaks; the way out**. It names tables, columns and row
numbers, and never shows an identifier, a feature, a label, a key or a password. It goes to standard error, after the
word `error:`.

```text
error: k=50 candidates asked for, but the secondary party has 12 records; choose k between 1 and 12
```

What another party is told of a failure here is its kind alone; details stay in the local log.

## Exit codes

| code | meaning |
|---|---|"""
SCRIPTS = """
In a script, 2 is worth a person's look and 3 a second attempt:

```bash
until fedsim party job.toml rentals.toml --quiet; do
  [ $? -eq 3 ] || exit 1
  sleep 60
done
```

## Types

"""


def errors_page() -> str:
    """Exit codes, the tree of errors, and each of them."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield LEAD
    yield from (f"| {code:d} | {meaning} |" for code, meaning in EXIT_CODE_MEANINGS.items())
    yield SCRIPTS
    yield markdown(errors.__doc__)
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.FedSimError):
            yield f"### {name}\n\n{markdown(kind.__doc__)}"
