"""ACL entries for tests: few names, so that they concern each other."""

from __future__ import annotations

from hypothesis import strategies as st

from kbroker.security.acls import Acl, Operation, PatternType, Permission, ResourceType

NAMES = ("*", "a", "ab", "abc", "b", "**")
PRINCIPALS = ("User:alice", "User:bob", "User:*", "Group:alice")
HOSTS = ("*", "10.0.0.1", "::ffff:10.0.0.2", "", "10.0.0.9/8", "10.0.0.2/31", "0.0.0.0/0", "::/0", "a/b")
OPERATIONS = (
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)


def acls() -> st.SearchStrategy[Acl]:
    return st.builds(
        Acl,
        st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        st.sampled_from(NAMES),
        st.sampled_from(PRINCIPALS),
        st.sampled_from(HOSTS),
        st.sampled_from(OPERATIONS),
        st.sampled_from([Permission.DENY, Permission.ALLOW]),
    )


def entry(
    principal: str,
    operation: Operation,
    name: str,
    pattern: PatternType = PatternType.LITERAL,
    kind: ResourceType = ResourceType.TOPIC,
    permission: Permission = Permission.ALLOW,
    host: str = "*",
) -> Acl:
    return Acl(kind, pattern, name, principal, host, operation, permission)
