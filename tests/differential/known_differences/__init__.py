"""Where kbroker deliberately answers differently from Apache Kafka, by API: each difference has its
reason in docs/rules under the same id.

A difference is matched by the script, the place in the answers, and both values. Any other
difference is a bug. So is an entry that no script meets any more: the list has present differences
only.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences import (
    base,
    compaction,
    dead_letters,
    groups,
    security,
    settings,
    share_fetch,
    share_state,
    tools,
    transactions,
)
from tests.differential.known_differences.matching import Difference
from tests.differential.running import Found

KNOWN: Sequence[Difference] = (
    *share_fetch.KNOWN,
    *settings.KNOWN,
    *base.KNOWN,
    *share_state.KNOWN,
    *transactions.KNOWN,
    *groups.KNOWN,
    *compaction.KNOWN,
    *security.KNOWN,
    *dead_letters.KNOWN,
    *tools.KNOWN,
)


def explain(found: Found) -> str | None:
    """The id of the difference that explains this one. None: a bug of kbroker, or a difference that
    is not listed yet."""
    return next((known.id for known in KNOWN if known.explains(found)), None)
