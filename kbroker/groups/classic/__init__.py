"""Classic consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""
