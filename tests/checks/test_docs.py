"""Documents match the code: links lead somewhere, and every exit code, decision and Kafka API is
listed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli import exits

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "plugins/*/*.md",
        "clients/*/*.md",
        "perf/**/*.md",
        "spark/*.md",
        "tests/*.md",
    )
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\[[^]]*]\((?!https?://|#)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert [
        link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()
    ] == []


GIVEN = {
    "docs/pipeline.md": {"spark"},
    "docs/python-client.md": {"bootstrap", "context", "deliver", "fetch", "password"},
}
"""Names that the reader's own program has, by page."""


@pytest.fixture(scope="module")
def linted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """ruff's findings in the Python of each page, read from the top, by page: one start for all."""
    folder = tmp_path_factory.mktemp("pages")
    pages = {str(folder / f"page{at}.py"): document for at, document in enumerate(DOCUMENTS)}
    for path, document in pages.items():
        blocks = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
        Path(path).write_text("\n".join(blocks))
    options = ["--isolated", "--no-cache", "--select", "F821", "--output-format", "json"]
    ran = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *options, folder], capture_output=True, text=True, check=False
    )
    found: dict[str, list[str]] = {str(document.relative_to(ROOT)): [] for document in DOCUMENTS}
    for finding in json.loads(ran.stdout):
        page = str(pages[finding["filename"]].relative_to(ROOT))
        found[page].append(f"{finding['code']} {finding['message']}")
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_use_names_that_they_have(document: Path, linted: dict[str, list[str]]) -> None:
    """The Python on a page, read from the top, is a program without undefined names."""
    page = str(document.relative_to(ROOT))
    undefined = {f"F821 Undefined name `{name}`" for name in GIVEN.get(page, set())}
    assert set(linted[page]) == undefined


def test_packages_that_are_in_no_index_are_installed_from_a_checkout() -> None:
    """The first line that a reader copies must not fetch a stranger's package of that name."""
    found = [
        f"{document.relative_to(ROOT)}: {line}"
        for document in DOCUMENTS
        for line in re.findall(r"pip install [^`\n]*", document.read_text())
        if re.search(r"(^|[\s'])(kbroker|pyspark-kbroker)", line.removeprefix("pip install"))
    ]
    assert found == []


def test_exit_codes() -> None:
    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    documented = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "exit-codes.md").read_text(), re.MULTILINE)
    assert sorted(map(int, documented)) == sorted(codes)


def test_decisions_are_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert LINK.findall(index) == files
    assert [file[:4] for file in files] == [f"{number:04}" for number in range(1, len(files) + 1)]
