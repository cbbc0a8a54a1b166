"""Group commit: from a write that a task submits to the sync that makes it durable, and how tasks
wait meanwhile."""
