# Everything starts here. Each target sets itself up first (deploy/setup.sh, once), so that a fresh
# machine needs one command. After any of them `.venv/bin/tidemark` is there.

SHELL := /bin/bash
VENV := .venv/bin
# Given on the command line only: how long demo and soak run, how often torture kills, how many
# queries it generates, whether all of them read the clock, the database to try, which parts of the bench run (see python -m bench --help).
SECONDS :=
KILLS := 200
QUERIES := 10000
SEEDS := 20000
ONLY :=
TEMPORAL :=
DSN :=
# Processes of `make test`: two for each of two cores, since tests wait for servers, and at most
# four: each has a PostgreSQL and a Spark session of its own.
WORKERS := $(shell [ $$(nproc) -gt 1 ] && echo 4 || echo 2)

# Compiled modules are cached: a service starts three processes, and tests start hundreds of services.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-demo demo try test test-all quick lint console bench simulate torture queries soak wheels package-check clean

setup:
	@deploy/setup.sh

setup-demo:
	@deploy/setup.sh demo

demo: setup-demo  ## a private shop under live traffic; SECONDS=30 ends it, exit 0 if every check was equal
	@exec $(VENV)/tidemark demo $(if $(SECONDS),--seconds $(SECONDS))

try: setup-demo  ## init, serve and the view of the README on a database of your own: make try DSN=dbname=shop
	@exec deploy/try.sh '$(DSN)'

test: setup  ## every promise and feature once; style and types are tests of it (tests/test_tidy.py)
	@exec $(VENV)/python -m pytest --fast --second-try --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: setup  ## the whole suite: both versions of PostgreSQL, all of each kind (docs/contributing/TESTING.md)
	@exec $(VENV)/python -m pytest --second-try --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

quick: setup  ## is the core sound: no server, no JVM
	@exec $(VENV)/python -m pytest -q $(wildcard tests/unit tests/property) tests/test_tidy.py

lint: setup
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/pyright

console:  ## build service/console/dist from its sources; needs node 20 and npm, as no other target does
	@cd service/console && npm ci --silent && npm run --silent build

bench: setup  ## ours beside its peers, written to bench/RESULTS.md; ONLY=w2r,flink for a part
	@exec $(VENV)/python -m bench $(if $(ONLY),--only $(ONLY))

torture: setup queries  ## kill -9 at random moments, KILLS times; 1M rows under --memory; after `queries`
	@TIDEMARK_TEST_KILLS=$(KILLS) TIDEMARK_TEST_FAILPOINTS=all TIDEMARK_TEST_FILES=$$((2 * $(KILLS))) TIDEMARK_TEST_DISK=$$(($(KILLS) / 2)) TIDEMARK_TEST_FAULTS=$(KILLS) TIDEMARK_TEST_RESTARTS=$$(($(KILLS) / 2)) \
	TIDEMARK_TEST_BROKER=$$(($(KILLS) * 3 / 10)) TIDEMARK_TEST_ROWS=1000000 exec $(VENV)/python -m pytest --timeout 0 tests/recovery tests/end_to_end/test_kernels.py

queries: setup  ## QUERIES generated queries against PostgreSQL, TEMPORAL=1: all of which read the clock; TIDEMARK_TEST_SEED continues a run
	@exec $(VENV)/python -m tests.equality.torture $(QUERIES) $(if $(TEMPORAL),--temporal)

simulate: setup  ## SEEDS runs of the whole pipeline in one thread, each from its seed; SEED: the first
	@exec $(VENV)/python -m tests.simulation.run $(or $(SEED),1) --seeds $(SEEDS)

soak: setup  ## random operations under load for SECONDS (an hour), what must not grow; then random queries
	@TIDEMARK_TEST_SOAK_S=$(or $(SECONDS),3600) exec $(VENV)/python -m pytest -s --timeout 0 \
		tests/recovery/test_soak.py tests/equality/test_generated.py tests/equality/test_queries.py

wheels:  ## into dist: the kernels for x86_64 and aarch64, the service, the client
	@deploy/wheels.sh dist

package-check: setup  ## the wheels in empty environments: a view is served from there
	@deploy/package_check.sh

clean:
	rm -rf .pytest_cache .ruff_cache .hypothesis .tidemark build *.egg-info spark-warehouse metastore_db bench/data dist
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
	rm -rf .venv service/console/node_modules
