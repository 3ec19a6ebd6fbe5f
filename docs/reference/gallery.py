"""Pages of the gallery: every example is run cell by cell, and its page shows what it prints and draws."""

from __future__ import annotations

import ast
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples" / "gallery"
ORDER = ("places", "names", "people", "several_partners", "protect_and_audit")
CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)
INTRODUCTION = """# Gallery

Five short examples on generated data, each a script with cells that notebooks open as they are (`# %%`). The pages show
what they print and draw.

"""


def gallery_pages() -> dict[str, str]:
    """Return the overview and the page of every example, by path."""
    import torch  # noqa: PLC0415 - only where the gallery is built

    torch.set_num_threads(1)
    pages = {name: example_page(EXAMPLES / f"{name}.py") for name in ORDER}
    rows = [f"- [{_title(text)}]({name}.md)" for name, text in pages.items()]
    return {"gallery/index.md": INTRODUCTION + "\n".join(rows)} | {
        f"gallery/{name}.md": text for name, text in pages.items()
    }


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def example_page(path: Path) -> str:
    """Run a script with cells, and return it as a page with its output."""
    _, *parts = CELL.split(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__file__": str(path), "__name__": "__main__"}
    blocks = []
    for kind, cell in zip(parts[::2], parts[1::2], strict=True):
        if "markdown" in kind:
            blocks.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in cell.strip().splitlines()))
        else:
            blocks += [f"```python\n{cell.strip()}\n```", *_run_cell(cell, names, path)]
    blocks.insert(1, f"The script: `examples/gallery/{path.name}`.")
    return "\n\n".join(blocks) + "\n"


def _run_cell(code: str, names: dict[str, Any], path: Path) -> list[str]:
    """Run a cell as a notebook does; return what it prints, and the value of its last expression as HTML or text."""
    tree = ast.parse(code, path.name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(StringIO()) as printed:
        exec(compile(tree, path.name, "exec"), names)  # noqa: S102 - our own examples
        value = eval(compile(ast.Expression(last.value), path.name, "eval"), names) if last else None  # noqa: S307
    shown = []
    if printed.getvalue():
        shown.append(f"``` {{ .text .output }}\n{printed.getvalue().rstrip()}\n```")
    if value is not None:
        lines = "\n".join(filter(None, map(str.strip, value._repr_html_().splitlines())))
        shown.append(f'<div class="picture" data-search-exclude>\n{lines}\n</div>')
    return shown
