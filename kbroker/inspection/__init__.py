"""Reading a data directory, also beside a running broker: for the command line and for Spark."""
