"""Answers of a fake broker with entries of an authorizer: APIs 29 to 31."""

from __future__ import annotations

from typing import Any

from kio.schema.index import api_key_map, schema_name_map

from kbroker.errors import ErrorCode
from kbroker.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

API_VERSIONS, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 18, 29, 30, 31


class AclAnswers:
    """`refusal`: the code of every answer; `refused`: names of resources whose entries it does not
    take."""

    def __init__(self) -> None:
        self.acls: list[Acl] = []
        self.refusal = ErrorCode.none
        self.refused: set[str] = set()

    def __call__(self, key: int, version: int, request: Any) -> dict[str, Any] | None:
        match key:
            case 18:
                return {"error_code": ErrorCode.none, "api_keys": _rows()}
            case 29:
                return self._described(_filter(request))
            case 30:
                return {"results": [self._created(row) for row in request.creations]}
            case 31:
                return {"filter_results": [self._deleted(_filter(row)) for row in request.filters]}
        return None

    def _described(self, chosen: AclFilter) -> dict[str, Any]:
        resources = [
            {
                "resource_type": acl.kind.value,
                "resource_name": acl.name,
                "pattern_type": acl.pattern.value,
                "acls": [
                    {
                        "principal": acl.principal,
                        "host": acl.host,
                        "operation": acl.operation.value,
                        "permission_type": acl.permission.value,
                    }
                ],
            }
            for acl in self.acls
            if chosen.selects(acl)
        ]
        return {"error_code": self.refusal, "error_message": None, "resources": resources}

    def _created(self, row: Any) -> dict[str, Any]:
        if self.refusal is not ErrorCode.none:
            return {"error_code": self.refusal, "error_message": None}
        if row.resource_name in self.refused:
            return {"error_code": ErrorCode.invalid_request, "error_message": "not this one"}
        acl = Acl(
            ResourceType(row.resource_type),
            PatternType(row.resource_pattern_type),
            row.resource_name,
            row.principal,
            row.host,
            Operation(row.operation),
            Permission(row.permission_type),
        )
        if acl not in self.acls:
            self.acls.append(acl)
        return {"error_code": ErrorCode.none, "error_message": ""}

    def _deleted(self, chosen: AclFilter) -> dict[str, Any]:
        self.acls = [acl for acl in self.acls if not chosen.selects(acl)]
        return {"error_code": ErrorCode.none, "error_message": None, "matching_acls": []}


def _filter(row: Any) -> AclFilter:
    return AclFilter(
        ResourceType(row.resource_type_filter),
        PatternType(row.pattern_type_filter),
        row.resource_name_filter,
        row.principal_filter,
        row.host_filter,
        Operation(row.operation),
        Permission(row.permission_type),
    )


def _rows() -> list[dict[str, int]]:
    keys = (API_VERSIONS, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS)
    return [
        {"api_key": key, "min_version": 0, "max_version": max(schema_name_map[api_key_map[key]])}
        for key in keys
    ]
