"""Share-partitions at work: loading them, fetching from them, and what becomes of records that wait
or are given up."""
