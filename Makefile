# floatscope: every job a user, a developer or CI runs. `make help` lists them.
#
# TORCH is the one place that names a PyTorch version: the bundled trainer and the tests use it, the published
# package never pins it. Point it elsewhere with: make demo TORCH="torch==2.14.1"
TORCH  ?= torch==2.13.0
# Transformer Engine's Python part, checked on the CPU by `make test-te`
TE     ?= 2.20.2
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMPS := $(VENV)/.stamps

.PHONY: help demo serve test check format test-bare test-wheel test-te test-integrations bench bench-diagnosis evaluate-small audit docs messages clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(STAMPS)/all ## train healthy and faulty runs against a local server, print the verdicts, keep serving (ARGS=--exit ends)
	$(BIN)/floatscope demo $(ARGS)

serve: $(STAMPS)/all ## start the server on its embedded default
	$(BIN)/floatscope serve $(ARGS)

test: $(STAMPS)/all $(STAMPS)/test $(STAMPS)/system ## the whole test suite
	sh .ci/test.sh "$(BIN)/python" $(ARGS)

check: $(STAMPS)/all $(STAMPS)/lint ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMPS)/lint ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-bare: ## CI job: the agent alone, installed without any extra
	sh .ci/bare.sh "$(PYTHON)"

test-wheel: $(STAMPS)/test ## CI job: the built wheel in a clean environment
	sh .ci/wheel.sh "$(PYTHON)" "$(BIN)/python"

test-te: ## CI job: the Transformer Engine probe against the real Python package, on the CPU
	sh .ci/te.sh "$(PYTHON)" "$(TORCH)" "$(TE)"

test-integrations: ## CI job: the integrations against the real training libraries, on the CPU
	sh .ci/integrations.sh "$(PYTHON)" "$(TORCH)"

bench: $(STAMPS)/all $(STAMPS)/test ## the benchmarks: figures and ratios, printed
	for m in trainer.precisions agent.own_time agent.step_time agent.memory agent.step_latency agent.recorder_cost diagnosis.throughput "diagnosis small" logs curves server; do \
	  echo "== $$m"; $(BIN)/python -m benchmarks.$$m || exit 1; done

evaluate-small: $(STAMPS)/all $(STAMPS)/test ## a small injection library from nothing, judged; fails below the floor (under 3 minutes)
	$(BIN)/python -m benchmarks.diagnosis small --cache $(VENV)/.evaluation --jobs 2 --at-least 85

bench-diagnosis: $(STAMPS)/all $(STAMPS)/test ## the full injection library, resumable, and what the diagnosis makes of it
	$(BIN)/python -m benchmarks.diagnosis run
	$(BIN)/python -m benchmarks.diagnosis evaluate

audit: $(STAMPS)/all ## known vulnerabilities of what is installed; asks a public service, so it is not part of CI (exit 3: could not look)
	test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && .venv-audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	sh .ci/audit.sh "$(BIN)/python" .venv-audit/bin/pip-audit

docs: $(STAMPS)/all ## regenerate the pages of the rules, the formats and the settings
	$(BIN)/python -m floatscope_diagnostics.rule_docs docs/rules
	$(BIN)/python -m floatscope_diagnostics.format_docs docs/diagnose.md
	$(BIN)/python -m tests.repo.settings_docs docs/settings.md
	$(BIN)/python -m tests.repo.server_settings_docs docs/server-settings.md

messages: $(STAMPS)/all ## bring the message catalogues up to date with the texts of the pages
	$(BIN)/python -m tests.repo.messages

clean: ## remove the environments and caches
	rm -rf .venv .venv-bare .venv-wheel .venv-te .venv-integrations .venv-audit dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMPS)/venv:
	sh .ci/python.sh "$(PYTHON)" "$(VENV)"
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/all: pyproject.toml $(STAMPS)/venv
	$(PIP) "$(TORCH)"
	$(PIP) -e '.[all]'
	@touch $@

$(STAMPS)/test: pyproject.toml $(STAMPS)/venv
	$(PIP) --group test
	@touch $@

$(STAMPS)/lint: pyproject.toml $(STAMPS)/venv
	$(PIP) --group lint --group test
	@touch $@

$(STAMPS)/system: .ci/system.sh $(STAMPS)/venv
	sh .ci/system.sh
	@touch $@
