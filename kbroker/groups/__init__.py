"""Group coordinators, pure: classic, consumer and share groups, and committed offsets."""
