"""DeleteGroups for one group of any type: its records and its settings in one commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kbroker.broker.configs import Configs
from kbroker.broker.groups.runner import C, DecisionRunner
from kbroker.errors import ErrorCode
from kbroker.groups.outcome import Outcome


async def decide_deletion(
    decide: Callable[[], Outcome[ErrorCode]],
    group_id: str,
    runner: DecisionRunner[C],
    configs: Configs,
    on_deleted: Callable[[], None] | None = None,
) -> Outcome[ErrorCode]:
    """Save and return what `decide` returns. If the group is deleted, `on_deleted` runs in the step
    in which that is saved; its settings cannot be altered meanwhile. Replies
    COORDINATOR_NOT_AVAILABLE, without effects, if nothing could be saved."""
    async with configs.altering:
        outcome = decide()
        if outcome.reply is not ErrorCode.none:
            saved = await runner.save(outcome)
        else:
            changes = (*outcome.changes, *configs.removal_of_group(group_id))
            gone = partial(_gone, group_id, configs, on_deleted)
            saved = await runner.save(replace(outcome, changes=changes), gone)
    return outcome if saved else Outcome(reply=ErrorCode.coordinator_not_available)


def _gone(group_id: str, configs: Configs, on_deleted: Callable[[], None] | None) -> None:
    configs.group_removed(group_id)
    if on_deleted is not None:
        on_deleted()
