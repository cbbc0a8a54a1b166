"""From a request at the admin HTTP endpoint to its action. The table of kbroker.api has the paths
and the rights, and every action of the table has a view here. One without the other does not start.

    path -> action -> who sends it -> may it -> view
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from kbroker.api import ADMIN_ACTIONS, AdminAction
from kbroker.server.admin_access import AdminAccess, AdminCaller
from kbroker.server.admin_requests import HttpAnswer, HttpRefusal, HttpRequest, wrong_method

Names: TypeAlias = Mapping[str, str]
"""Of resources, from the path and the query, by their kind in capitals."""
ActionView: TypeAlias = Callable[[HttpRequest, AdminCaller, Names], Awaitable[HttpAnswer]]
"""Called for clients that have the rights of its row. As a View otherwise."""

FORMS: Final = frozenset({"log_in", "log_out"})
"""Changes that a page without scripts sends: their views look at the CSRF value."""


class AdminActions:
    """The only view of the endpoint. Raises LookupError if `views` are not exactly those of the
    table."""

    def __init__(self, access: AdminAccess, *views: Mapping[str, ActionView]) -> None:
        self._access = access
        self._views = {name: view for each in views for name, view in each.items()}
        if unlike := self._views.keys() ^ ADMIN_ACTIONS.keys():
            raise LookupError(f"an admin action needs a row in kbroker.api and a view: {sorted(unlike)}")
        for action in ADMIN_ACTIONS.values():
            if action.method == "POST" and action.is_open and action.name not in FORMS:
                raise LookupError(f"the admin action {action.name} changes something and needs a log-in")

    async def __call__(self, request: HttpRequest) -> HttpAnswer:
        action, names = _found(request)
        if "topic" in request.query:
            names["TOPIC"] = request.query["topic"]
        caller = await self._access.caller_of(request)
        await self._access.check(action, names, request, caller)
        if request.method == "POST" and action.name not in FORMS:
            self._access.check_csrf(request, caller)
        return await self._views[action.name](request, caller, names)


def _found(request: HttpRequest) -> tuple[AdminAction, dict[str, str]]:
    """The action and the names in the path. Raises HttpRefusal."""
    methods = []
    for action in ADMIN_ACTIONS.values():
        names = _matched(action.path, request.path)
        if names is None:
            continue
        if action.method == ("GET" if request.method == "HEAD" else request.method):
            return action, names
        methods.append(action.method)
    if methods:
        raise wrong_method(request.method, methods)
    raise HttpRefusal(404, "there is nothing here; / lists the views")


def _matched(pattern: str, path: tuple[str, ...]) -> dict[str, str] | None:
    parts = tuple(pattern.strip("/").split("/")) if pattern != "/" else ()
    if len(parts) != len(path):
        return None
    names = {}
    for part, given in zip(parts, path, strict=True):
        if part.isupper():
            names[part] = given
        elif part != given:
            return None
    return names
