"""The documentation builds without a warning, names everything public, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import undrift as ud
from undrift.rules import RULES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    quiet = {"NO_MKDOCS_2_WARNING": "1", **nowhere}
    made = subprocess.run(command, cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert "WARNING" not in made.stderr, made.stderr
    return out


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)", page.read_text())
        assert not loaded, (page.name, loaded)


def test_equations_are_equations(site: Path) -> None:
    page = (site / "algorithms.html").read_text()
    assert page.count('display="block"') >= 9
    assert "$" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    rules = (site / "rules.html").read_text()
    assert "<math" not in rules


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in ud.__all__:
        known = getattr(ud, name)
        shown = getattr(known, "__name__", name).rpartition(".")[2]
        assert name == "__version__" or f">{shown}<" in page or f'.{shown}"' in page, name
        assert name == "__version__" or known.__doc__, f"{name} has no docstring"


@pytest.mark.parametrize("name", RULES)
def test_every_algorithm_has_its_equations_or_words_with_a_source(name: str) -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text()
    headings = " ".join(re.findall(r"^## (.*)$", text, re.MULTILINE)).lower()
    assert f"`{name}`" in text or name in headings.replace("-", "")


def test_results_and_benchmarks_are_part_of_the_site(site: Path) -> None:
    for page in ("results/index.html", "benchmarks/results/index.html"):
        assert "<table" in (site / page).read_text(), page
