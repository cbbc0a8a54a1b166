"""kbroker-client beside confluent-kafka: `python -m perf.python_client`, `make perf-python-client`
(perf/README.md, "The Python client").

One broker, and share consumers that take one record, accept it, and take the next. The sides are
client libraries, so what is measured is the client: rate, its processor time, its latency.
"""
