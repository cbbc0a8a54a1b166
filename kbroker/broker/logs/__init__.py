"""Topics and their partitions: appending, validating, finding and removing records."""
