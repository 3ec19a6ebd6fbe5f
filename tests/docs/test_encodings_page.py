"""The example at the top of docs/encodings.md runs."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "encodings.md"


def test_the_example_of_the_encodings_page_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, PAGE.name, "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == "2048 True\n"
