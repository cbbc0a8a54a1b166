"""The broker's settings that say over which time the rates of quotas are measured."""

from __future__ import annotations

from kbroker.settings.definition import INT_MAX, ConfigDef, ConfigType

WINDOWS, WINDOW_SECONDS = "quota.window.num", "quota.window.size.seconds"

QUOTA_CONFIGS = (
    ConfigDef(
        name=WINDOWS,
        type=ConfigType.INT,
        default="11",
        minimum=1,
        maximum=INT_MAX,
        doc="How many windows are kept of the rates that quotas limit. A client that was idle may use the "
        "quota of all windows but one at once.",
    ),
    ConfigDef(
        name=WINDOW_SECONDS,
        type=ConfigType.INT,
        default="1",
        minimum=1,
        maximum=INT_MAX,
        doc="The length of each of these windows.",
    ),
)
