# One target for each wish; each makes its own set-up. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

# Python 3.11 where it is whole (venv and all), because torch's CPU build is at hand for it; else what python3 is.
PYTHON ?= $(or $(shell for python in python3.11 python3; do \
	$$python -c 'import ensurepip, venv' 2>/dev/null && echo $$python && break; done),python3)

# A Python named by hand is meant, also where the environment of another one stands.
ifneq ($(origin PYTHON),file)
$(shell [ "$$(.venv/bin/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" ] || rm -f .venv/ready .venv-wheel/ready)
endif

# The URL of an index of torch's CPU builds, asked for torch alone. Without one, pip's own settings decide which build comes.
TORCH_INDEX ?=

# What pip brings of torch, and how large. An index is meant, also where an environment without torch stands.
ifneq ($(TORCH_INDEX),)
TORCH = torch's CPU build (0.2 GB) from $(TORCH_INDEX)
$(shell .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))' 2>/dev/null || rm -f .venv/ready)
else ifneq ($(filter 3.11.%,$(shell $(PYTHON) -V 2>&1)),)
TORCH = torch: its CPU build (0.2 GB) where pip's settings lead to it or TORCH_INDEX=URL names its index, else the CUDA build (0.5 GB, and several GB with its libraries)
else
TORCH = no torch (TORCH_INDEX=URL brings its CPU build, 0.2 GB)
endif

BIN := .venv/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
comma := ,
# With torch comes what it needs: the index is asked for torch alone.
EXTRAS := s3,gcs,azure,metrics,bootstrap$(if $(TORCH_INDEX),$(comma)torch)
SOURCES = $(shell find agent hooks providers packaging -name '*.py') pyproject.toml setup.py packaging/release.toml MANIFEST.in LICENSE $(wildcard README.md)
# The tiers: tests/tiers.py says which test is in which.
FAST := -m "not slow and not soak and not bench"
SLOW := -m "slow and not soak and not bench"
# More workers than cores: half of the tests' time is waiting, and three quarters of the whole-path tests'.
JOBS ?= 5
SLOW_JOBS ?= 10
# A test file that needs torch must say so: on a Python without torch the others still run.
COLLECT_WITHOUT_TORCH = $(BIN)/python -c 'import sys; sys.modules["torch"] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))' \
	--collect-only -qqq -rN -p no:cacheprovider
# mkdocs-material advertises its successor on every build.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
# Tests start thousands of Pythons: each would compile our sources again (the fast tier's imports took 78 s of processors, not 41).
unexport PYTHONDONTWRITEBYTECODE
# CI sets it to scripts/again, which runs once more what fails.
AGAIN ?=

.PHONY: help demo docs site release-check sbom test quick test-slow times soak check bench wheel test-wheel test-pythons servers clean

help:  ## list what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: .venv/ready  ## the main job on a simulated cloud: train, be preempted, resume, compare
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "make demo: the demo trains with torch, and $$($(BIN)/python -V) here has none. Run it with TORCH_INDEX=URL (the index of CPU builds that PyTorch's install page names), or with PYTHON=python3.11" >&2; exit 1; }
	$(BIN)/spotguard demo

test: .venv/ready  ## the fast tier: six minutes, and no server
	$(AGAIN) $(BIN)/pytest $(FAST) --numprocesses=$(JOBS) --dist=worksteal

quick: .venv/ready  ## the fast tests of what differs from BASE (HEAD)
	@$(BIN)/python scripts/quick $(BASE)

test-slow: .venv/ready  ## the slow tier: real servers, the pages, and what is long; `make servers` first
	$(AGAIN) $(BIN)/pytest $(SLOW) --numprocesses=$(SLOW_JOBS) --dist=worksteal

times: .venv/ready  ## record what both tiers take, and print the table of CONTRIBUTING.md
	rm -f tests/times.json
	SPOTGUARD_TIMES=$(CURDIR)/tests/times.json $(MAKE) test test-slow
	$(BIN)/python -m tests.times

soak: .venv/ready  ## for nights: hundreds of seeded kills, and long runs
	$(BIN)/pytest -m "soak or hypothesis"  # and the properties with new examples

check: .venv/ready  ## lint, format, types, floors, layout
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=packaging $(BIN)/lint-imports --no-logo --no-cache  # its cache misses a module that is new
	$(BIN)/python scripts/check-house
	$(BIN)/python scripts/check-prose
	$(MKDOCS) build --strict --quiet
	@$(COLLECT_WITHOUT_TORCH) --no-summary >/dev/null || $(COLLECT_WITHOUT_TORCH)

docs: .venv/ready  ## serve the docs site on http://127.0.0.1:8000
	$(MKDOCS) serve

site: .venv/ready  ## build the docs site into build/site
	$(MKDOCS) build --strict --quiet

bench: .venv/ready  ## measure, and print the table of benchmarks/
	$(BIN)/python -m benchmarks

release-check: dist/built build/sbom.cdx.json .venv/ready  ## refuse a release that is not ready: version, changelog, places, licences, archives
	.venv-build/bin/python -Im build --sdist --no-isolation .
	$(BIN)/python scripts/release-check

wheel: dist/built  ## build the wheel into dist/
	@ls dist/*.whl

test-wheel: .venv-wheel/ready  ## the whole-path tests of the fast tier against the built wheel
	$(AGAIN) .venv-wheel/bin/pytest $(FAST) --numprocesses=$(JOBS) --dist=worksteal -o pythonpath= -o cache_dir=.venv-wheel/cache tests/e2e tests/attach

test-pythons:  ## the fast tier on every other Python >= 3.12 that is here; with torch if TORCH_INDEX names its index
	TORCH_INDEX='$(TORCH_INDEX)' scripts/test-pythons $(FAST) --numprocesses=$(JOBS) --dist=worksteal

sbom: build/sbom.cdx.json  ## list what an installation with all clouds brings (CycloneDX), in build/

servers:  ## install the real servers of the integration tests (as root where Debian packages are missing)
	@scripts/servers $(PYTHON)

clean:  ## remove everything that make made
	rm -rf .venv .venv-build .venv-sbom .venv-wheel .venv-3.* .servers build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find agent hooks providers packaging tests -name __pycache__ -prune -exec rm -rf {} +

# An environment is made again when its Python changed, else brought up to date.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || { echo "make: Python 3.11 to 3.14 is needed, and $(PYTHON) is $$($(PYTHON) -V 2>/dev/null || echo "not there"): name another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make environments: install its venv module (Debian: python3-venv), or name another with PYTHON=..." >&2; exit 1; }
	@[ "$$($(@D)/bin/python -V 2>&1)" = "$$($(PYTHON) -V)" ] || rm -rf $(@D)
	@[ -d $(@D) ] || { echo "making $(@D) with $$($(PYTHON) -V): pip fetches 0.1 GB of packages and $(TORCH)"; $(PYTHON) -m venv $(@D); }
	@$(@D)/bin/python $(PIP_INSTALL) 'pip>=25.1'  # older ones know no dependency groups
	@$(if $(TORCH_INDEX),$(@D)/bin/python $(PIP_INSTALL) --index-url '$(TORCH_INDEX)' --no-deps torch)
endef

.venv/ready: pyproject.toml constraints.txt
	$(environment)
	$(BIN)/python $(PIP_INSTALL) --group dev --group docs --editable '.[$(EXTRAS)]'
	@touch $@

# What ends in the archives passes through these tools only, and pip checks their digests.
.venv-build/ready: packaging/build-tools.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

# No stale build/ and no older wheel: what lies in dist/ is this checkout.
dist/built: .venv-build/ready $(SOURCES)
	rm -rf build dist
	.venv-build/bin/python -Im build --wheel --no-isolation .
	@touch $@

# torch is left out: it is the user's own build.
build/sbom.cdx.json: dist/built .venv/ready
	$(PYTHON) -m venv --clear .venv-sbom
	.venv-sbom/bin/python $(PIP_INSTALL) "$$(echo dist/*.whl)[s3,gcs,azure,metrics,bootstrap]"
	$(BIN)/python $(PIP_INSTALL) --group release
	mkdir -p $(@D)
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible --output-file $@ .venv-sbom/bin/python

# Away from the checkout's own packages, or the tests would pass whatever the wheel holds.
.venv-wheel/ready: dist/built
	$(environment)
	.venv-wheel/bin/python $(PIP_INSTALL) --force-reinstall --no-deps dist/*.whl
	.venv-wheel/bin/python $(PIP_INSTALL) --group dev "$$(echo dist/*.whl)[$(EXTRAS)]"
	@.venv-wheel/bin/python -Ic 'import spotguard.agent as a; assert "site-packages" in a.__file__, a.__file__'
	@touch $@
