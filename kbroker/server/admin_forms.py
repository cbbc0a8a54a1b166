"""Logging in and out with a browser, and the start page of the admin HTTP endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from kbroker.api import ADMIN_ACTIONS
from kbroker.server.admin_access import AdminAccess, AdminCaller
from kbroker.server.admin_actions import ActionView, Names
from kbroker.server.admin_log_ins import TOKEN_OWNER
from kbroker.server.admin_pages import log_in_page, start_page
from kbroker.server.admin_requests import HttpAnswer, HttpRefusal, HttpRequest, json_answer, see_other

_FORM = "application/x-www-form-urlencoded"


class AdminForms:
    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def views(self) -> Mapping[str, ActionView]:
        return {
            "start_page": self._start_page,
            "log_in_page": self._log_in_page,
            "log_in": self._log_in,
            "log_out": self._log_out,
        }

    async def _start_page(self, request: HttpRequest, caller: AdminCaller, _: Names) -> HttpAnswer:
        if not request.wants_html:
            listed = [each for each in ADMIN_ACTIONS.values() if each.summary]
            return json_answer({"views": {_shown(each.method, each.path): each.summary for each in listed}})
        name = "the owner of the token" if caller.principal == TOKEN_OWNER else caller.principal.name
        csrf = None if caller.session is None else caller.session.csrf
        return start_page(name if caller.is_known else None, csrf)

    async def _log_in_page(self, request: HttpRequest, _: AdminCaller, names: Names) -> HttpAnswer:
        await self._access.log_ins.make_token()
        place = _own_path(request.query.get("next", "/"))
        return log_in_page(have_users=self._access.log_ins.have_users, place=place)

    async def _log_in(self, request: HttpRequest, _: AdminCaller, names: Names) -> HttpAnswer:
        form = await _form(request)
        place = _own_path(form.get("next", "/"))
        log_ins, host = self._access.log_ins, request.peer.host
        if log_ins.have_users:
            proved = await self._access.password_log_in(
                form.get("user", ""), form.get("password", ""), request
            )
        else:
            proved = await log_ins.by_token(form.get("token", "").strip(), host)
        if proved is None:
            wrong = "The log-in failed."
            return log_in_page(have_users=log_ins.have_users, place=place, message=wrong, status=403)
        self._access.end_session(request)
        return see_other(place, self._access.begin_session(proved))

    async def _log_out(self, request: HttpRequest, caller: AdminCaller, _: Names) -> HttpAnswer:
        form = await _form(request)
        self._access.check_csrf(request, caller, form.get("csrf", ""))
        return see_other("/", self._access.end_session(request))


def _shown(method: str, path: str) -> str:
    return path if method == "GET" else f"{method} {path}"


async def _form(request: HttpRequest) -> dict[str, str]:
    """The first value of each field. Raises HttpRefusal."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HttpRefusal(415, f"send a form ({_FORM})")
    try:
        fields = parse_qs((await request.read_body()).decode(), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise HttpRefusal(400, "the form is not percent-encoded UTF-8") from error
    return {name: values[0] for name, values in fields.items()}


def _own_path(place: str) -> str:
    """A path of this endpoint; `/` for any other place, to which a page could have sent the
    browser."""
    is_path = place.startswith("/") and not place.startswith("//")
    return place if is_path and place.isascii() and place.isprintable() and "\\" not in place else "/"
