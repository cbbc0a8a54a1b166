"""Generates the table of APIs that are not served in docs/clients.md: `python -m
tests.checks.unserved_doc` (or `make docs`)."""

from __future__ import annotations

from pathlib import Path

from kbroker.api.unserved import UNSERVED

CLIENTS_DOC = Path(__file__).parents[2] / "docs" / "clients.md"
HEADING = "### APIs that are not served\n"


def rendered(document: str) -> str:
    """The document with the present table, with which it ends."""
    return f"{document.partition(HEADING)[0]}{HEADING}{_section()}"


def _section() -> str:
    names: dict[str, list[str]] = {}
    for key, each in sorted(UNSERVED.items()):
        names.setdefault(each.why, []).append(f"{each.name} {key}")
    rows = "".join(f"| {why} | {', '.join(apis)} |\n" for why, apis in names.items())
    return f"""
Made from `kbroker/api/unserved.py` by `make docs`; do not edit. A client that sends one of these
loses its connection, and the log names the API and the client.

| why | APIs, with their keys |
| --- | --- |
{rows}"""


if __name__ == "__main__":
    CLIENTS_DOC.write_text(rendered(CLIENTS_DOC.read_text()))
