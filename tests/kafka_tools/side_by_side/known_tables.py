"""Every known difference, of all chapters."""

from __future__ import annotations

from tests.kafka_tools.side_by_side import known_cluster, known_groups, known_security, known_settings

KNOWN = (*known_settings.KNOWN, *known_groups.KNOWN, *known_cluster.KNOWN, *known_security.KNOWN)
