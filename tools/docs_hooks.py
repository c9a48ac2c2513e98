"""What the documentation needs beyond MkDocs: equations as MathML, and the pages that lie outside of docs/.

MathML is part of HTML: no script that would have to be fetched. The results and benchmarks are generated where they
are, and shown here as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = ("results", "benchmarks/results")
KINDS = {".md", ".png", ".svg", ".json"}
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^\$\$(.+?)\$\$$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"\$(?!\s)([^$\n]+?)(?<!\s)\$")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Equations between dollars become MathML; code is left alone. Pages from outside find docs/ where it is here."""
    if page.file.src_uri.startswith(OUTSIDE):
        markdown = re.sub(r"(\]\((?:\.\./)+)docs/", r"\1", markdown)
    return "".join(part if CODE.fullmatch(part) else _with_mathml(part) for part in CODE.split(markdown))


def _with_mathml(text: str) -> str:
    text = BLOCK.sub(lambda found: f"<div class='equation'>{_mathml(found[1], 'block')}</div>", text)
    return INLINE.sub(lambda found: f"<span>{_mathml(found[1], 'inline')}</span>", text)


def _mathml(latex: str, display: str) -> str:
    return str(convert(latex.strip().replace("\n", " "), display=display))


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages with what they link to."""
    for folder in OUTSIDE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in KINDS:
                name = path.relative_to(ROOT).as_posix()
                files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files
