"""Group commit: from a submitted write to the sync that makes it durable, and how tasks wait for
it."""
