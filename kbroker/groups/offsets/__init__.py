"""The offsets of groups: committed ones, and those that transactions will commit."""
