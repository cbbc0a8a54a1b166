"""Schemas of message versions that kio does not have yet, made from the last version that it has:
ApiVersions 5 (KIP-1242), TxnOffsetCommit 6 (KIP-1319), DeleteGroups 3."""

from __future__ import annotations

from dataclasses import MISSING, field, fields, make_dataclass
from functools import cache
from typing import Any, Final, NamedTuple, get_args
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.static.primitive import i16, i32

API_VERSIONS, TXN_OFFSET_COMMIT, DELETE_GROUPS = 18, 28, 42


class _Field(NamedTuple):
    """A field that is new. Without a default it must be given."""

    name: str
    type: Any
    kafka_type: str
    default: Any = MISSING


_CLUSTER_ID = _Field("cluster_id", str | None, "string", None)
_NODE_ID = _Field("node_id", i32, "int32", i32(-1))
_TOPIC_ID = _Field("topic_id", UUID | None, "uuid")
_ERROR_MESSAGE = _Field("error_message", str | None, "string", None)
_CONSTANTS: Final = frozenset({"__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__"})
NEWER: Final = {API_VERSIONS: 5, TXN_OFFSET_COMMIT: 6, DELETE_GROUPS: 3}
"""The version of each API that is made here."""


@cache
def newer_request(api_key: int) -> type[Any]:
    """The schema of a request in its version of NEWER."""
    last = load_request_schema(api_key, NEWER[api_key] - 1)
    if api_key == API_VERSIONS:
        return _newer(last, more=(_CLUSTER_ID, _NODE_ID))
    return _with_topic_ids(last) if api_key == TXN_OFFSET_COMMIT else _newer(last)


@cache
def newer_response(api_key: int) -> type[Any]:
    """The schema of a response in its version of NEWER."""
    last = load_response_schema(api_key, NEWER[api_key] - 1)
    if api_key == DELETE_GROUPS:
        return _newer(last, results=_newer(_rows(last, "results"), more=(_ERROR_MESSAGE,)))
    return _with_topic_ids(last) if api_key == TXN_OFFSET_COMMIT else _newer(last)


def _with_topic_ids(last: type[Any]) -> type[Any]:
    topics = _rows(last, "topics")
    partitions = _newer(_rows(topics, "partitions"))
    return _newer(last, topics=_newer(topics, name=_TOPIC_ID, partitions=partitions))


def _rows(schema: type[Any], name: str) -> type[Any]:
    rows: type[Any] = get_args(schema.__dataclass_fields__[name].type)[0]
    return rows


def _newer(last: type[Any], *, more: tuple[_Field, ...] = (), **changed: _Field | type[Any]) -> type[Any]:
    """`last` one version on. `more`: fields behind its own; `changed`: a field in place of one of
    its own, or the schema of its rows."""
    named = []
    for each in fields(last):
        change = changed.get(each.name)
        if isinstance(change, _Field):
            named.append(_declared(change))
            continue
        its_type = each.type if change is None else tuple[change, ...]  # type: ignore[valid-type]
        named.append((each.name, its_type, field(default=each.default, metadata=each.metadata)))
    constants = {name: value for name, value in vars(last).items() if name in _CONSTANTS}
    constants |= {"__version__": i16(last.__version__ + 1), "__module__": __name__}
    return make_dataclass(
        last.__name__,
        [*named, *map(_declared, more)],
        namespace=constants,
        frozen=True,
        slots=True,
        kw_only=True,
    )


def _declared(new: _Field) -> tuple[str, Any, Any]:
    return new.name, new.type, field(default=new.default, metadata={"kafka_type": new.kafka_type})
