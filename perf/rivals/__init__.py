"""Compares kbroker with other queues at one-at-a-time work: `python -m perf.rivals`, `make
perf-rivals` (perf/README.md, "Rivals").

Each rival is a server from a Debian package. It runs as a child process, on its own port and in a
new directory, and is killed at the end. Its client is the Python client that its users use.
"""
