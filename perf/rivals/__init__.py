"""Other queues doing kbroker's one-at-a-time work: `python -m perf.rivals`, `make perf-rivals`
(perf/README.md, "Rivals").

Each rival is a server from Debian's packages that runs as a child process of ours, on its own port
and its own new directory, and is killed at the end. Its client is the Python client that its users
take.
"""
