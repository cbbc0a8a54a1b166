"""Kafka's JAAS lines for a broker's listener: the users of SASL/PLAIN.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";

`user_NAME` gives a user and the password. `username` and `password` are those with which a broker
of Kafka logs in at another one; there is none here, so they are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_OPTION = re.compile(r"""\s*([\w.@+-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_USER: Final = "user_"
_EXAMPLE: Final = f'{_PLAIN_MODULE} required user_alice="PASSWORD";'


def read_options(text: str) -> tuple[dict[str, str], str]:
    """The `name="value"` options at the beginning of a text, and what is left behind them."""
    options: dict[str, str] = {}
    at = 0
    while (option := _OPTION.match(text, at)) is not None:
        name, *forms = option.groups()
        options[name] = next(re.sub(r"\\(.)", r"\1", form) for form in forms if form is not None)
        at = option.end()
    return options, text[at:].strip()


def plain_users(text: str) -> Mapping[str, str]:
    """The passwords by user name. There are none in an empty text, and in the lines of SCRAM, whose
    users are in the state, and of OAUTHBEARER. Raises ValueError, without any of the values."""
    if not text.strip():
        return {}
    module, flag, rest = (*text.split(None, 2), "", "", "")[:3]
    if module in (_SCRAM_MODULE, _OAUTH_MODULE):
        return {}
    if module != _PLAIN_MODULE or flag.rstrip(";") not in _FLAGS:
        raise ValueError(f"expected {_EXAMPLE}")
    options, left = read_options(rest)
    users = {name.removeprefix(_USER): value for name, value in options.items() if name.startswith(_USER)}
    if left not in ("", ";") or not (flag + rest).rstrip().endswith(";"):
        raise ValueError(f"expected {_EXAMPLE} with a semicolon at its end")
    if "" in users or "" in users.values():
        raise ValueError("a user without a name or a password")
    return users
