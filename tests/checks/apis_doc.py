"""Generates docs/apis.md from the tables of APIs: `python -m tests.checks.apis_doc` (or `make
docs`)."""

from __future__ import annotations

from pathlib import Path

from kbroker.api import APIS
from kbroker.api.unserved import UNSERVED

PAGE = Path(__file__).parents[2] / "docs" / "apis.md"
_HEAD = """\
# Kafka's APIs

Made from `kbroker/api/__init__.py` and `kbroker/api/unserved.py` by `make docs`; do not edit.

## Served

*rights*: what the handler checks if there is an [authorizer](security.md#acls). A star: ApiVersions
does not list the API, so clients do not send it.

| key | API | versions | rights |
| --- | --- | --- | --- |
"""
_UNSERVED = """
## Not served

A client that sends one of these loses its connection, and the log names the API and the client.

| key | API | why |
| --- | --- | --- |
"""


def name_of(module: str) -> str:
    return module.title().replace("_", "")


def rendered() -> str:
    served = "".join(
        f"| {key} | {name_of(api.module)}{'' if api.listed else ' *'} "
        f"| {api.first if api.first == api.last else f'{api.first}-{api.last}'} | {api.needs} |\n"
        for key, api in sorted(APIS.items())
    )
    others = "".join(f"| {key} | {each.name} | {each.why} |\n" for key, each in sorted(UNSERVED.items()))
    return _HEAD + served + _UNSERVED + others


if __name__ == "__main__":
    PAGE.write_text(rendered())
