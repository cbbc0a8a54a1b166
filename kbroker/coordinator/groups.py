"""Classic groups, consumer groups and the offsets of both: the one that the broker asks. Pure.

A group id belongs to one type; each request goes to the part that has the group, and a group that does not exist yet is made by the
part that the request belongs to. How an outcome is carried out stands in outcome.py.

    request                          classic group                consumer group               share group
    JoinGroup                        classic                      as a classic member          INCONSISTENT_GROUP_PROTOCOL
    SyncGroup, Heartbeat, LeaveGroup classic                      as a classic member          UNKNOWN_MEMBER_ID
    ConsumerGroupHeartbeat           made a consumer group        consumer                     GROUP_ID_NOT_FOUND
    OffsetCommit, OffsetDelete       classic checks the member    consumer checks the member   GROUP_ID_NOT_FOUND

This module must not know how a protocol works.
"""
