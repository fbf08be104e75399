# The commands of the README. Each sets up what it needs; a second call starts at once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRA  ?= $(shell if command -v nvidia-smi >/dev/null 2>&1; then echo gpu; else echo cpu; fi)
CONFIG ?= tuned_examples/dapo_math.yaml
STAMP  := $(VENV)/.installed-$(EXTRA)

.PHONY: train test check format clean

train: $(STAMP)  ## set up, then train the embedded model
	$(BIN)/rllib train file $(CONFIG) $(ARGS)

test: $(STAMP)-dev  ## set up, then run all tests
	$(BIN)/python -m pytest $(ARGS)

check: $(STAMP)-dev  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/make_docs.py --check

format: $(STAMP)-dev  ## apply the formatter and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(STAMP): setup.cfg pyproject.toml scripts/install.py
	$(PYTHON) scripts/install.py --venv $(VENV) --extras $(EXTRA)
	touch $@

$(STAMP)-dev: $(STAMP)
	$(PYTHON) scripts/install.py --venv $(VENV) --extras $(EXTRA),dev
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info results
