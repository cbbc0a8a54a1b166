"""docs/internals/moved.md: each new name exists, and no old name does, except for the listed
ones."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "moved.md"
ROWS = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", PAGE.read_text(), re.MULTILINE)
KEPT = {
    "perf.results",
    "kbroker.coordinator.consumer_assignor",
    "kbroker.storage.chunked_log",
    "kbroker.storage.chunked_store",
    "kbroker.storage.chunks",
}


def is_there(name: str) -> bool:
    """Whether a module, or a class in one, exists."""
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    module, _, member = name.rpartition(".")
    try:
        return member[:1].isupper() and hasattr(importlib.import_module(module), member)
    except ModuleNotFoundError:
        return False


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 100


@pytest.mark.parametrize(("old", "new"), ROWS)
def test_a_name_leads_to_its_new_place(old: str, new: str) -> None:
    assert is_there(new)
    became_a_folder = any(each.startswith(old + ".") for _, each in ROWS)
    assert is_there(old) == (old in KEPT or became_a_folder)
