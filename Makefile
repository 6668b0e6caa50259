# `make demo` and `make test` do all their set-up by themselves. PYTHON chooses the interpreter,
# ARGS goes to pytest: make test ARGS="-k rule".
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO_FOLDER := demo-output

.DEFAULT_GOAL := help
.PHONY: help demo test check format clean

help:
	@echo "make demo    set up, then race vSGD against 799 settings of its rivals on digits"
	@echo "make test    set up, then run all tests"
	@echo "make check   set up, then lint, check formatting and types"
	@echo "make format  let ruff mend what it can"
	@echo "make clean   remove the virtual environment and all output"

# A stamp, because an attempt that fails half-way leaves a python without pip behind.
$(VENV)/venv.stamp:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(VENV)/venv.stamp
	@echo "installing pesky and what the demo needs into $(VENV) (once; a minute or two)"
	$(INSTALL) --editable '.[lab]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/venv.stamp
	@echo "installing pesky with everything its tests need into $(VENV) (once; a few minutes)"
	$(INSTALL) --editable '.[torch,sklearn,lab,cluster,dev,peers]'
	$(INSTALL) --no-deps backpack-for-pytorch unfoldNd
	@touch $@ $(VENV)/demo.stamp

demo: $(VENV)/demo.stamp
	$(BIN)/pesky figure nonstationary --out $(DEMO_FOLDER)
	$(BIN)/pesky race digits --store $(DEMO_FOLDER)/race.sqlite --out $(DEMO_FOLDER)
	$(BIN)/pesky report --store $(DEMO_FOLDER)/race.sqlite --figures $(DEMO_FOLDER) --out $(DEMO_FOLDER)

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --numprocesses 2 $(ARGS)

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict pesky

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO_FOLDER) pesky-figures .pytest_cache .mypy_cache .ruff_cache .hypothesis
