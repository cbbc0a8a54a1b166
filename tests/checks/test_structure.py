"""Bounds for the figures of tests/checks/structure.py. A bound may fall; a commit that raises one
needs a reason."""

from __future__ import annotations

import pytest

from tests.checks.structure import MAX_PARAMETERS, figures

BOUNDS = {
    "import circles": 0,
    # With transactions/ and compaction/: each from broker.py, and to commits/ and logs/. With
    # security/: from broker.py and connection.py, and to commits/.
    "arrows in broker/": 34,
    "arrows in groups/": 30,
    "arrows in storage/": 17,
    f"constructors of more than {MAX_PARAMETERS} parameters": 0,
    "done-closures": 0,
    "getattr on an SPI": 0,
    "work_in": 0,
    "attributes of parts set after construction": 0,
    "public class names twice in a package": 0,
    "files above 600 lines": 0,
}
FOUND = figures()


@pytest.mark.parametrize("figure", BOUNDS)
def test_the_structure_stays_within_its_bounds(figure: str) -> None:
    assert len(FOUND[figure]) <= BOUNDS[figure], "\n".join(FOUND[figure])
