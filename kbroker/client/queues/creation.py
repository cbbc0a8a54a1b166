"""Creates a queue, or alters one: makes the plan, checks all of its steps, and carries them out."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...errors import ErrorCode, KafkaError
from ...protocol.topic_names import is_legal, why_illegal
from ..caller import Caller
from ..key_orders import ordered_groups, why_not_to_grow
from .advice import Option, QueueRefused
from .plan import QueuePlan, plan
from .settings import Wish

_UPDATE = Option("update")
_CHANGED_BY_OTHERS = (ErrorCode.topic_already_exists, ErrorCode.coordinator_load_in_progress)
"""Another caller has created a topic just now, or is changing the group."""
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Before planning again. A topic that is not durable yet exists already, and is not listed yet."""


class QueueDiffers(QueueRefused):
    """The queue differs from the wish, or its name belongs to a topic or a group that is none.
    `plan.differences` has how; nothing was changed."""

    def __init__(self, plan: QueuePlan) -> None:
        name = plan.name
        if plan.is_new:
            super().__init__(f"queue {name} was not created: ", _UPDATE, " creates it and alters that")
        else:
            super().__init__(f"queue {name} was not changed: ", _UPDATE, " alters it")
        self.plan = plan


def create_queue(
    connection: Caller, wish: Wish, *, update: bool, force: bool, done: Callable[[str], None]
) -> QueuePlan:
    """Returns the plan that was carried out. Nothing is changed before the broker has accepted
    every step in a check.

    - `update`: alter an existing queue where it differs
    - `force`: add partitions even if the queue keeps the order of keys
    - `done`: called after each step, with a line about it

    Plans again if another caller creates the queue at the same time. After an interruption, calling
    it again does the rest. Raises QueueRefused (QueueDiffers without `update`) and KafkaError.
    """
    if not is_legal(wish.name):
        raise QueueRefused(why_illegal(wish.name))
    for pause_s in _PAUSES_S:
        try:
            return _create_now(connection, wish, update=update, force=force, done=done)
        except KafkaError as error:
            if error.code not in _CHANGED_BY_OTHERS:
                raise
        time.sleep(pause_s)
    return _create_now(connection, wish, update=update, force=force, done=done)


def _create_now(
    connection: Caller, wish: Wish, *, update: bool, force: bool, done: Callable[[str], None]
) -> QueuePlan:
    made = plan(connection, wish)
    if made.differences and not update:
        # Another caller may have made the queue while this one looked: its group is then there, and
        # its topic seems not to be.
        made = plan(connection, wish)
        if made.differences:
            raise QueueDiffers(made)
    for step in made.steps:
        step.check(connection)
    if (
        not force
        and any(each.config == "partitions" for each in made.differences)
        and (ordered := ordered_groups(connection, wish.name))
    ):
        raise why_not_to_grow(wish.name, ordered)
    for step in made.steps:
        step.run(connection)
        done(step.done)
    return made
