# `make demo` and the tests do all their set-up by themselves. PYTHON chooses the interpreter,
# ARGS goes to pytest: make test ARGS="-k rule". SETTING chooses one of the portable settings.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint
INSTALL := $(BIN)/python $(PIP_INSTALL) constraints.txt
DEMO_FOLDER := demo-output
SETTING ?= default avx2 background
# What cannot be imported without PyTorch.
NEEDS_TORCH := tests/torch tests/online/methods/test_robust_torch.py \
	tests/lab/torch_table tests/lab/toys.py tests/lab/bench tests/cli/test_torch_table.py \
	pesky/torch pesky/lab/torch_table pesky/lab/pages/report/torch_section.py \
	pesky/lab/torch_models.py pesky/lab/bench/models.py pesky/lab/bench/update.py

.DEFAULT_GOAL := help
.PHONY: help demo docs test test-fast test-portable test-oldest check format package clean

help:
	@echo "make demo           set up, then race vSGD against 799 settings of its rivals on digits"
	@echo "make docs           set up, then build the site from docs/ into site/"
	@echo "make test           set up, then run all tests"
	@echo "make test-fast      those for everyday work: no processes, no data sets, nothing slow"
	@echo "make test-portable  those that compute, as other processors see them; SETTING=default is one"
	@echo "make test-oldest    those without PyTorch, with the oldest versions of all dependencies"
	@echo "make check          set up, then lint, check formatting and types"
	@echo "make format         let ruff mend what it can"
	@echo "make package        build wheel and sdist, check them, run the README's examples with the wheel"
	@echo "make clean          remove the virtual environments and all output"

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
	$(INSTALL) --editable '.[torch,sklearn,lab,cluster,dev,docs,peers]'
	$(INSTALL) --no-deps backpack-for-pytorch unfoldNd
	@touch $@ $(VENV)/demo.stamp $(VENV)/docs.stamp

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(VENV)/venv.stamp
	@echo "installing pesky and what builds its site into $(VENV) (once; a minute or two)"
	$(INSTALL) --editable '.[lab,docs]'
	@touch $@

$(OLDEST)/dev.stamp: pyproject.toml constraints-oldest.txt
	@echo "installing the oldest versions that pesky is said to run with into $(OLDEST) (once)"
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python $(PIP_INSTALL) constraints-oldest.txt --editable '.[sklearn,lab,cluster,test]'
	@touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/pesky figure nonstationary --out $(DEMO_FOLDER)
	$(BIN)/pesky race digits --store $(DEMO_FOLDER)/race.sqlite --out $(DEMO_FOLDER)
	$(BIN)/pesky report --store $(DEMO_FOLDER)/race.sqlite --figures $(DEMO_FOLDER) --out $(DEMO_FOLDER)

# Reads sources and Markdown only: the site needs no PyTorch to be built and no network to be read.
docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built; open site/index.html"

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --numprocesses 2 $(ARGS)

test-fast: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --numprocesses 2 -m "not (subprocess or data or peers or slow)" $(ARGS)

test-portable: $(VENV)/dev.stamp
	@for setting in $(SETTING); do \
		$(BIN)/python -m tests.portable $$setting --numprocesses 2 $(ARGS) || exit; \
	done

# With a cache of its own, because Numba's releases throw each other's compiled code away.
test-oldest: $(OLDEST)/dev.stamp
	NUMBA_CACHE_DIR=$(CURDIR)/$(OLDEST)/numba $(OLDEST)/bin/python -m pytest --numprocesses 2 $(NEEDS_TORCH:%=--ignore=%) $(ARGS)

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict pesky

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Wheel and sdist into dist, their contents checked, the README's examples run with the wheel alone.
package: $(VENV)/dev.stamp
	rm -rf dist
	$(BIN)/python -m tests.package dist

clean:
	rm -rf $(VENV) $(OLDEST) $(DEMO_FOLDER) site dist pesky-figures .pytest_cache .mypy_cache .ruff_cache .hypothesis
