"""Reading a data directory, even while the broker runs: for the command line and for Spark."""
