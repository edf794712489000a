# Each command sets up what it needs: an empty machine with Python 3.11 or newer is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
ENGINES := .venv-vllm
ENGINE_EXTRAS := serve
RAY := .venv-ray
VERSIONS ?= 5.18.0 5.20.2 newest
export HF_HUB_OFFLINE := 1
# What is imported is compiled once and kept, wherever that is switched off: commands and tests start Python often.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: ask demo test lint soak serve-test ray-test versions audit sbom clean

$(CORE): pyproject.toml constraints.txt locks/ask.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "arr-coc needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	scripts/install.sh $(BIN)/python ask
	touch $@

$(DEMO): $(CORE)
	scripts/install.sh $(BIN)/python demo demo
	touch $@

$(DEV): $(CORE)
	scripts/install.sh $(BIN)/python test train,demo,dev
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

test: $(DEV)
	@# In three processes, since many tests wait, and beside the linters; what fails there is tried once more, alone.
	@$(MAKE) --no-print-directory lint & linted=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not soak" \
		|| $(BIN)/python -m pytest --last-failed -m "not soak"; tested=$$?; \
	wait $$linted && exit $$tested

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(DEV)
	$(BIN)/python -m pytest -m soak

# Batches on Ray, in an environment of its own that sees the other one: 300 MB and half a minute to make.
$(RAY)/.made: $(DEV)
	$(PYTHON) -m venv $(RAY)
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		> $$($(RAY)/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth
	$(RAY)/bin/python -m pip install --quiet -c constraints.txt -e ".[ray]"
	touch $@

ray-test: $(DEV)
	@$(MAKE) --no-print-directory $(RAY)/.made \
		|| { echo "make ray-test: Ray cannot be installed here, and what needs it is not tested"; exit 1; }
	@echo "batches on Ray: about 3 minutes on two quiet cores"
	OMP_NUM_THREADS=1 $(RAY)/bin/python -m pytest tests/on_ray -m "not soak"

$(ENGINES)/.ready: pyproject.toml constraints.txt scripts/serve_env.sh scripts/declare_torchvision.py
	@scripts/serve_env.sh $(PYTHON) $(ENGINES) $(ENGINE_EXTRAS)
	@touch $@

# What needs engines that are no part of the project, in an environment of its own: vLLM with the plugin. About 10 minutes.
serve-test: $(ENGINES)/.ready
	OMP_NUM_THREADS=1 $(ENGINES)/bin/python -m pytest tests/serve --timeout=900

# The equality suite on the oldest, a middle and the newest transformers, each in an environment of its own (60 MB).
versions: $(DEV)
	@scripts/versions.sh $(PYTHON) $(VENV) $(VERSIONS)

# Known weaknesses of what is locked, where a database of them can be reached; where not, it says so.
audit: $(DEV)
	test -x $(VENV)/audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)/audit \
		&& $(VENV)/audit/bin/python -m pip install --quiet pip-audit; } || true
	$(BIN)/python -m studies.supply.audit $(VENV)/audit/bin/python

# What is installed, as a bill of materials.
sbom: $(DEV)
	$(BIN)/python -m studies.supply.sbom --extra demo --out results/sbom.json

clean:
	rm -rf $(VENV) $(ENGINES) $(RAY) .venv-transformers-* out build dist *.egg-info
