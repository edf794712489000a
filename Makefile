# Each command sets up what it needs: an empty machine with Python 3.11 or newer is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
export HF_HUB_OFFLINE := 1

.PHONY: ask demo test lint soak clean

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "arr-coc needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(DEMO): $(CORE)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[demo]"
	touch $@

$(DEV): $(CORE)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[train,demo,dev]"
	touch $@

# Three questions about one image: the answers, and pictures of where each of them looked.
ask: $(CORE)
	@mkdir -p out; number=0; \
	for question in "What colour is the hand?" "Which word is blue?" "Describe the scene."; do \
		number=$$((number + 1)); echo "? $$question"; \
		$(BIN)/arr-coc ask "$$question" --overlay out/ask-$$number.png || exit 1; \
	done; echo "pictures: out/ask-1.png, out/ask-2.png, out/ask-3.png"

# The same in the browser, and more: compare, look closer, draw scenes. On this machine alone, until Ctrl-C.
demo: $(DEMO)
	$(BIN)/arr-coc demo --open

test: lint
	@# In two processes; what fails there is tried once more, alone and in order.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not soak" \
		|| $(BIN)/python -m pytest --last-failed -m "not soak"

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(DEV)
	$(BIN)/python -m pytest -m soak

clean:
	rm -rf $(VENV) out build dist *.egg-info
