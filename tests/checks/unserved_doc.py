"""Generates the table of APIs that are not served in docs/clients.md: `python -m
tests.checks.unserved_doc` (or `make docs`)."""

from __future__ import annotations

from pathlib import Path

from kbroker.api.unserved import UNSERVED

CLIENTS_DOC = Path(__file__).parents[2] / "docs" / "clients.md"
HEADING = "### APIs that are not served\n"
_NEXT = "\n## "


def rendered(document: str) -> str:
    """The document with the present table."""
    before, _, rest = document.partition(HEADING)
    return f"{before}{HEADING}{_section()}{_NEXT}{rest.partition(_NEXT)[2]}"


def _section() -> str:
    rows = "".join(f"| {key} | {each.name} | {each.why} |\n" for key, each in sorted(UNSERVED.items()))
    return f"""
Made from the table in `kbroker/api/unserved.py` by `make docs`; do not edit. A client that sends one
of them loses its connection, and the log names the API and the client.

| API key | name | why |
| --- | --- | --- |
{rows}"""


if __name__ == "__main__":
    CLIENTS_DOC.write_text(rendered(CLIENTS_DOC.read_text()))
