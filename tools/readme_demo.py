"""Put the table of a finished demo into the README: undrift demo --out DIR; python tools/readme_demo.py DIR."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def main(folder: Path) -> None:
    """Replace what stands between the demo markers."""
    table = (folder / "table.md").read_text()
    text, count = re.subn(
        r"<!-- demo -->.*<!-- /demo -->",
        lambda _: f"<!-- demo -->\n{table}<!-- /demo -->",
        README.read_text(),
        flags=re.DOTALL,
    )
    if count != 1:
        sys.exit("the README has no place for the demo's table")
    README.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
