"""Share-partitions at work: loading them, fetching from them, and handling records that wait or are
archived."""
