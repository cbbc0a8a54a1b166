# Every target sets up what it needs: a Debian machine with Python 3.11 or later (and its venv module), make and a C compiler is enough.
# Where python3 is another Python: make demo PYTHON=python3.12
#
#   make demo        a broker, 50 000 orders, four share consumers at work, two kills; under a minute after installation
#   make test        all checks and tests, in stages: what .ci/run runs
#   make test-full   the same with the long variants: whole matrices, many rounds
#   make crash       kill -9 rounds on every engine, judged by the history checker (half an hour; ENGINE=lmdb: that one only)
#   make powercut    power cuts replayed on every engine, judged by the history checker (likewise)
#   make differential  kbroker's answers compared with those recorded from Apache Kafka (docs/differences.md)
#   make record-kafka  records them anew; needs Java and Maven
#   make spark-full  all tests of the Spark data sources and the pipeline, long variants included
#   make spark-demo  a broker, load, share consumers, poison records: what Spark reads of it, as reports to look at
#   make perf-parts  times the broker's parts on every engine, four minutes (PARTS_ARGS=--quick: under one)
#   make perf        kbroker on every engine beside Apache Kafka, in turns, under an hour (perf/README.md; PERF_ARGS)
#   make perf-quick  its main rows, under five minutes
#   make perf-queues  work queues on every engine, kbroker alone: jobs one at a time, redelivery, jobs for later (PERF_ARGS)
#   make perf-transactions  transactions beside Apache Kafka, share consumers beside a compaction, under twenty minutes (PERF_ARGS)
#   make perf-security  connections with TLS beside Apache Kafka, ten minutes (PERF_ARGS)
#   make perf-python-client  kbroker-client beside confluent-kafka, ten minutes (PERF_ARGS)
#   make perf-rivals  one-at-a-time queue work beside Redis Streams, RabbitMQ and NATS JetStream; root: installs them (RIVALS_ARGS)
#   make lint        ruff, mypy --strict, import contracts, size limits and documentation walks
#   make docs        write the documents that are made from tables
#   make clean       remove what these targets made

PYTHON ?= python3
PIP_FLAGS := --quiet --no-input --disable-pip-version-check -c constraints.txt
PY := .venv/bin/python
PYTEST := $(PY) -m pytest -q
# Each stage writes down what it costs, and `make test` prints the table at its end (tests/stage_costs.py).
COSTS := build/stage-costs
COUNTED = -p tests.stage_costs --costs=$(COSTS)/$@
TIMED = -m tests.stage_costs run $(COSTS)/$@
# Tests of the broker's behaviour keep its data in memory, if there are 4 GB: their syncs would wait for one another. Stages that
# judge files, crashes and power cuts stay on the disk.
IN_MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')
SPARK_PY := .venv-spark/bin/python
PLUGINS := $(wildcard plugins/*/pyproject.toml) clients/python/pyproject.toml
SLOW := tests/checks tests/clients tests/consumer_groups tests/crash tests/powercut
PROGRAMS := tests/cli tests/formats tests/judges tests/perf tests/server tests/testing tests/workloads

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit test-api test-programs test-clients test-python-client test-crash test-powercut test-spark test-full spark-full spark-demo crash powercut differential record-kafka perf perf-quick perf-queues perf-transactions perf-security perf-python-client perf-parts perf-rivals lint docs clean recorder

help:
	@sed -n 's/^#   //p' Makefile

# Three environments: users of the demo need not wait for test tools, nor who works on the broker for Spark (1 GB, Java included).
# .ci/environment.py makes each, says what it does, and recreates an incomplete one.
ENVIRONMENT = $(PYTHON) .ci/environment.py
# A prerequisite that is never there, for an environment that has been made and is of no use any more: Python has gone, the checkout was moved.
unless_usable = $(if $(wildcard $(1)/.ready),$(shell $(1)/bin/python -I .ci/environment.py >/dev/null 2>&1 || echo unusable))

.PHONY: unusable

.venv-run/.ready: pyproject.toml constraints.txt plugins/kbroker-control-records/pyproject.toml $(call unless_usable,.venv-run)
	@$(ENVIRONMENT) .venv-run 'kbroker and what it needs (40 MB to download, about half a minute)' $(PIP_FLAGS) \
		-e . -e plugins/kbroker-control-records

.venv/.ready: pyproject.toml constraints.txt $(PLUGINS) $(call unless_usable,.venv)
	@$(ENVIRONMENT) .venv 'kbroker and the test tools (80 MB to download, about a minute)' $(PIP_FLAGS) \
		-e '.[test]' $(foreach plugin,$(PLUGINS),-e $(dir $(plugin)))

.venv-spark/.ready: pyproject.toml constraints.txt spark/pyproject.toml $(PLUGINS) $(call unless_usable,.venv-spark)
	@$(ENVIRONMENT) .venv-spark 'kbroker, the test tools, Spark and Java (1 GB on disk, some minutes)' $(PIP_FLAGS) \
		-e '.[test]' $(foreach plugin,$(PLUGINS),-e $(dir $(plugin))) -e './spark[java,pipeline]'

recorder:
	@if test -f tests/powercut/Makefile; then $(MAKE) --no-print-directory -s -C tests/powercut; fi

demo: .venv-run/.ready
	.venv-run/bin/kbroker demo

lint: .venv/.ready
	@printf '\n== ruff ==\n'
	$(PY) $(TIMED) $(PY) -m ruff check .
	@printf '\n== mypy --strict ==\n'
	$(PY) $(TIMED) $(PY) -m mypy
	@printf '\n== import contracts ==\n'
	$(PY) $(TIMED) .venv/bin/lint-imports --no-logo
	@printf '\n== sizes and documentation ==\n'
	$(PYTEST) $(COUNTED) tests/checks

# Three stages at a time, each shown when it has ended: half of their time is waiting. Spark is installed meanwhile.
test: .venv/.ready recorder
	@rm -rf $(COSTS)
	@$(MAKE) --no-print-directory --output-sync=target -j3 .venv-spark/.ready lint test-unit test-programs test-api test-clients \
		test-spark test-python-client test-crash test-powercut; \
		ended=$$?; $(PY) -m tests.stage_costs $(COSTS); exit $$ended
	@printf '\nall stages passed\n'

test-unit: .venv/.ready recorder
	@printf '\n== unit, contract and model tests ==\n'
	$(PYTEST) $(COUNTED) tests $(wildcard plugins/*/tests) $(addprefix --ignore=,$(SLOW) $(PROGRAMS) tests/api)

test-api: .venv/.ready recorder
	@printf '\n== Kafka APIs, brokers in this process ==\n'
	$(IN_MEMORY) $(PYTEST) $(COUNTED) tests/api

# They wait half of their time, for brokers of other processes.
test-programs: .venv/.ready recorder
	@printf '\n== the command line, brokers in processes, formats ==\n'
	$(IN_MEMORY) $(PYTEST) $(COUNTED) -n 2 --dist loadfile $(PROGRAMS)

test-clients: .venv/.ready recorder
	@printf '\n== Kafka clients ==\n'
	$(IN_MEMORY) $(PYTEST) $(COUNTED) tests/clients tests/consumer_groups

# They wait most of their time, each for a broker of its own process.
test-python-client: .venv/.ready recorder
	@printf '\n== the client and workers for asyncio and trio ==\n'
	$(IN_MEMORY) $(PYTEST) $(COUNTED) -n 3 --dist loadfile clients/python/tests

test-crash: .venv/.ready recorder
	@printf '\n== crashes ==\n'
	$(PYTEST) $(COUNTED) tests/crash

test-powercut: .venv/.ready recorder
	@printf '\n== power cuts ==\n'
	$(PYTEST) $(COUNTED) tests/powercut

# Types of the data sources are checked here, where Spark's are known. Two processes, a Spark session in each.
test-spark: .venv-spark/.ready
	@printf '\n== Spark: mypy --strict ==\n'
	$(SPARK_PY) $(TIMED) $(SPARK_PY) -m mypy spark/src
	@printf '\n== Spark data sources and pipeline ==\n'
	$(SPARK_PY) -m pytest -q $(COUNTED) -n 2 --dist loadfile spark/tests

test-full: lint recorder spark-full
	@printf '\n== everything, long variants included ==\n'
	$(PYTEST) -m "full or not full" tests $(wildcard plugins/*/tests) clients/python/tests

spark-full: .venv-spark/.ready
	$(SPARK_PY) -m pytest -q -m "full or not full" spark/tests

spark-demo: .venv-spark/.ready
	.venv-spark/bin/kbroker-pipeline demo

# Everything that ENGINE takes part in (an expression of pytest -k: see tests/README.md).
crash: .venv/.ready
	$(PYTEST) -m "full or not full" -k '$(ENGINE)' tests/crash

powercut: .venv/.ready recorder
	$(PYTEST) -m "full or not full" -k '$(ENGINE)' tests/powercut

differential: .venv/.ready
	$(PY) -m tests.differential compare $(SCRIPTS)

record-kafka: .venv/.ready
	$(PY) -m tests.differential record $(SCRIPTS)

# As a user has it: the environment of the demo, without test tools, with what the reports need beside it.
.venv-run/.perf: .venv-run/.ready
	.venv-run/bin/python -m pip install $(PIP_FLAGS) -e '.[perf]'
	@touch $@

# A run with arguments of its own is for a look: it does not replace the readings that are kept.
perf: .venv-run/.perf
	.venv-run/bin/python -m perf.suite --json $(if $(strip $(PERF_ARGS)),build,perf/results)/suite.json --html build/suite.html $(PERF_ARGS)

perf-quick: .venv-run/.perf
	.venv-run/bin/python -m perf.suite --quick --json build/quick.json --html build/quick.html $(PERF_ARGS)

perf-queues: .venv-run/.perf
	.venv-run/bin/python -m perf.queues --json $(if $(strip $(PERF_ARGS)),build,perf/results)/queues.json --html build/queues.html $(PERF_ARGS)

perf-transactions: .venv-run/.perf
	.venv-run/bin/python -m perf.transactions --json $(if $(strip $(PERF_ARGS)),build,perf/results)/transactions.json --html build/transactions.html $(PERF_ARGS)

perf-security: .venv-run/.perf
	.venv-run/bin/python -m perf.security --json $(if $(strip $(PERF_ARGS)),build,perf/results)/security.json --html build/security.html $(PERF_ARGS)

.venv-run/.perf-python-client: .venv-run/.perf clients/python/pyproject.toml
	.venv-run/bin/python -m pip install $(PIP_FLAGS) -e clients/python
	@touch $@

perf-python-client: .venv-run/.perf-python-client
	.venv-run/bin/python -m perf.python_client --json $(if $(strip $(PERF_ARGS)),build,perf/results)/python-client.json --html build/python-client.html $(PERF_ARGS)

.venv/.perf-parts: .venv/.ready
	$(PY) -m pip install $(PIP_FLAGS) -e '.[test,perf]'
	@touch $@

# No tests: nothing is asserted about time, and `make test` does not look at them.
perf-parts: .venv/.perf-parts
	$(PYTEST) perf/parts --benchmark-max-time=0.5 --benchmark-quiet $(PARTS_ARGS)

.venv-run/.rivals: .venv-run/.ready
	.venv-run/bin/python -m pip install $(PIP_FLAGS) -e '.[perf,rivals]'
	@touch $@

# The suite's report tools and the rivals' clients beside what a user has.
perf-rivals: .venv-run/.rivals
	.venv-run/bin/python -m perf.rivals.install
	.venv-run/bin/python -m perf.rivals --json $(if $(strip $(RIVALS_ARGS)),build,perf/results)/rivals.json $(RIVALS_ARGS)

docs: .venv/.ready
	$(PY) -m tests.checks.settings_doc
	$(PY) -m tests.checks.metrics_doc
	$(PY) -m tests.checks.cli_doc
	$(PY) -m tests.checks.rules_doc
	$(PY) -m tests.checks.apis_doc

clean:
	rm -rf .venv .venv-run .venv-spark demo-data
	rm -rf build dist *.egg-info plugins/*/build plugins/*/*.egg-info spark/build spark/src/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@if test -f tests/powercut/Makefile; then $(MAKE) --no-print-directory -s -C tests/powercut clean; fi
