"""The pages of the admin HTTP endpoint: a list of the views, and the log-in form. They need no
scripts, and the policy in their headers allows none."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from typing import Final

from kbroker.api import ADMIN_ACTIONS
from kbroker.server.admin_requests import HttpAnswer

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem;color:#222}"
    "label{display:block;margin:.8rem 0}input{font:inherit;padding:.3rem;width:20rem;max-width:100%}"
    "button{font:inherit;padding:.3rem 1rem}code{background:#f2f2f2;padding:.1rem .3rem}"
    ".wrong{color:#a00}dd{margin:0 0 .8rem 1rem}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-frame-options", "DENY"),
    # Not no-referrer: browsers would then hide the origin of forms, which is checked.
    ("referrer-policy", "same-origin"),
)


def log_in_page(*, have_users: bool, place: str, message: str = "", status: int = 200) -> HttpAnswer:
    """`place`: the path to return to."""
    if have_users:
        fields = (
            '<label>User<br><input name="user" autocomplete="username" autofocus required></label>'
            '<label>Password<br><input name="password" type="password" autocomplete="current-password" '
            "required></label>"
        )
    else:
        fields = (
            "<p>This broker has no users. Its token is in the file <code>admin-token</code> of the data "
            "directory; <code>kbroker admin token --show</code> prints it.</p>"
            '<label>Token<br><input name="token" type="password" autocomplete="off" autofocus required>'
            "</label>"
        )
    wrong = f'<p class="wrong">{escape(message)}</p>' if message else ""
    form = (
        f'<form method="post" action="/log-in">{fields}'
        f'<input type="hidden" name="next" value="{escape(place)}"><button>Log in</button></form>'
    )
    return _page("Log in", f"{wrong}{form}", status)


def start_page(name: str | None, csrf: str | None) -> HttpAnswer:
    """`name`: of the client, if it is known; `csrf`: of its session."""
    rows = "".join(
        f"<dt><code>{_linked(action.path, action.method)}</code></dt><dd>{escape(action.summary)}</dd>"
        for action in ADMIN_ACTIONS.values()
        if action.summary
    )
    if name is None:
        who = '<p><a href="/log-in">Log in</a></p>'
    elif csrf is None:
        who = f"<p>You are {escape(name)}.</p>"
    else:
        who = (
            f'<form method="post" action="/log-out"><p>You are {escape(name)}. '
            f'<input type="hidden" name="csrf" value="{escape(csrf)}"><button>Log out</button></p></form>'
        )
    return _page("kbroker", f"{who}<dl>{rows}</dl>")


def _linked(path: str, method: str) -> str:
    is_link = method == "GET" and path == path.lower()
    shown = escape(path if method == "GET" else f"{method} {path}")
    return f'<a href="{escape(path)}">{shown}</a>' if is_link else shown


def _page(title: str, content: str, status: int = 200) -> HttpAnswer:
    parts: Iterable[str] = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head>",
        f"<body><h1>{title}</h1>{content}</body></html>\n",
    )
    return HttpAnswer("text/html; charset=utf-8", "".join(parts).encode(), status, _HEADERS)
