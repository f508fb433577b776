# The two commands of the README. Everything is installed into .venv, nothing outside the folder is touched.
PYTHON ?= python3
PROMPT ?= Once upon a time
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
NATIVE_SOURCES := $(shell find cextensions -name '*.cc' -o -name '*.h' -o -name '*.inc')
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready

.PHONY: demo test quality quality-speed fuzz faults denied-calls campaign campaign-page agents lab memory-rates bench-peers lint native-test native-address native-thread native-calls native-arm sanitize \
  pythons pythons-ends lock audit sbom gpu-test gpu-compile gpu-tritons ranks-test long-test clean

demo: $(RUNS)
	$(BIN)/moeinf run demo --expert-cache 33% --num-predict 64 --seed 7 --verbose "$(PROMPT)"

# Packages are installed and mypy runs in one thread: the native tests are built beside both. Tests often wait for a
# process that they have started, so two more run at once than there are cores; in the order of the folders, which has
# the longest files first. Compiled modules are kept, whatever the environment says: each of hundreds of commands that
# tests start would compile its own. Each process would rewrite all assertions too, so as to explain one that fails: what
# failed runs again for that.
TESTS := $(BIN)/python -m pytest tests --numprocesses $$(($(JOBS) + 2)) --dist loadfile --no-loadscope-reorder
test: export PYTHONDONTWRITEBYTECODE :=
test: export SAMPLED_TESTS := 1
test: $(RUNS)
	$(MAKE) --jobs $(JOBS) --output-sync=target lint native-address
	$(TESTS) --assert=plain || { $(TESTS) --last-failed --last-failed-no-failures none; exit 1; }

# A long run of what `make test` has a short one of: other files, bits, messages and calls each time, unless FUZZ_SEED
# says which. Each of the five scripts has a fifth of the time.
FUZZ_SECONDS ?= 600
FUZZ_SEED ?= $(shell date +%s)

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz.hostile_files --seconds $$(($(FUZZ_SECONDS) / 5)) --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz.hostile_gguf --seconds $$(($(FUZZ_SECONDS) / 5)) --seed $(FUZZ_SEED)
	$(BIN)/python -m tests.fuzz.hostile_peers --seconds $$(($(FUZZ_SECONDS) / 5)) --seed $(FUZZ_SEED)
	$(BIN)/python tests/fuzz/flipped_bits.py --seconds $$(($(FUZZ_SECONDS) / 5)) --seed $(FUZZ_SEED)
	PATH="$(CURDIR)/$(BIN):$$PATH" cextensions/tests/python.sh address -m tests.fuzz.native_calls \
	  --seconds $$(($(FUZZ_SECONDS) / 5)) --seed $(FUZZ_SEED)

# What `make test` has a short form of: every system call that there is, refused in turn with five errnos to run, pull,
# doctor and serve. It takes an hour or two.
denied-calls: $(READY)
	$(BIN)/python -m tests.support.faults.denied_calls

# Requests are given up at any of their function calls, at any of their lines, and at any allocation of native code, and
# asked again: a third of the time each.
faults: $(READY)
	for at in calls lines allocations; do $(BIN)/python -m tests.fuzz.requests_given_up --at $$at \
	  --seconds $$(($(FUZZ_SECONDS) / 3)) --seed $(FUZZ_SEED) || exit 1; done

# Kills, power cuts, failing calls, simulated worlds and the fuzzers by turns, for so many hours. Begun again with the same
# folder it goes on; docs/lab/campaign.md tells what it tries, and campaign-page puts the folder's counts there.
HOURS ?= 1
SEED ?= 1
STATE ?= build/campaign

campaign: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.support.campaign.driver --state $(STATE) --hours $(HOURS) --seed $(SEED)

campaign-page: $(READY)
	$(BIN)/python -m tests.support.campaign.page $(STATE)/steps.jsonl

# What an installation brings: pinned with hashes for every system and Python, looked through for known faults, and
# listed in the form of CycloneDX. The first two ask public registries.
SUPPLY := build/supply

lock: $(SUPPLY)/.ready
	$(SUPPLY)/bin/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.10 --extra vision \
	  --custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

audit: $(SUPPLY)/.ready
	$(SUPPLY)/bin/pip-audit --requirement requirements.lock --require-hashes --disable-pip --strict

sbom: $(SUPPLY)/.ready
	$(SUPPLY)/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --of JSON -o build/sbom.json

$(SUPPLY)/.ready:
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/pip install -q uv pip-audit cyclonedx-bom
	touch $@

# Coding agents of npm and PyPI, each of which is to edit a file on a model that says what a script has for it, or, with
# AGENTS="--model NAME", on one of the store. `make test` has what they ask, recorded with "--record FOLDER".
AGENTS ?=

agents: $(READY)
	$(BIN)/python -m tests.agents $(AGENTS)

# Every experiment of docs/lab/paper.md, from the folder of recorded routing that docs/lab/policies.md describes.
LAB_TRACES ?= ../shared/data/traces

lab: $(READY)
	$(BIN)/python benchmarks/lab/record.py $(LAB_TRACES) docs/lab
	$(BIN)/python benchmarks/lab/pages.py docs/lab

# What share of a plain read's rate the kernels of decoding reach on this machine, by format and width: a minute or two.
# RATES takes options, as in RATES="--rows 1,2,4,8 --formats q8_0".
RATES ?=

memory-rates: $(RUNS)
	$(BIN)/python benchmarks/memory_rates.py $(RATES)

# GGUF files on this machine by moeinf and by the engines that pip installs, as docs/benchmarks.md: FILES names them, and
# without it there is one of random weights. The first time llama.cpp is built. PEERS takes options of the script.
FILES ?=
PEERS ?=
PEERS_ENV := build/peers
RANDOM_FILE := $(PEERS_ENV)/qwen3-30b-a3b-4-layers-q4_k_m.gguf

bench-peers: $(RUNS) $(PEERS_ENV)/.ready $(if $(FILES),,$(RANDOM_FILE))
	MOEINF_HOME=$(CURDIR)/$(PEERS_ENV)/home $(BIN)/python benchmarks/peers/bench_peers.py $(or $(FILES),$(RANDOM_FILE)) \
	  --peers $(PEERS_ENV)/bin/python --random $(notdir $(RANDOM_FILE)) $(PEERS)

$(PEERS_ENV)/.ready:
	$(PYTHON) -m venv $(PEERS_ENV)
	$(PEERS_ENV)/bin/python -m pip install --quiet --no-binary llama-cpp-python llama-cpp-python mistralrs
	touch $@

$(RANDOM_FILE): | $(RUNS)
	mkdir -p $(PEERS_ENV)
	$(BIN)/python benchmarks/peers/gguf_files/random_gguf.py benchmarks/peers/gguf_files/qwen3-30b-a3b.json $@.part Q4_K_M \
	  --layers 4 --vocab 151936
	mv $@.part $@

# Divergence from a checkpoint by size, as docs/lab/quantisation.md has it: moeinf's forms of CHECKPOINT, and with LLAMA_CPP,
# the folder of llama-quantize and llama-imatrix, and BF16_GGUF, the same checkpoint as a GGUF file, theirs. Texts are cut
# from CORPUS. What QUALITY has is not measured again; of a model of 5.7 GB all rows take hours on two cores.
# quality-speed adds how fast each row decodes with a third of the experts resident: on a machine that does nothing else.
CHECKPOINT ?= src/moeinf/data/demo
QUALITY ?= benchmarks/results/quality/demo.json
QUALITY_WORK ?= build/quality
CORPUS ?= ../shared/data/corpus
MEASURE_ROWS = $(BIN)/python benchmarks/quality/measure_rows.py "$(CHECKPOINT)" --texts $(QUALITY_WORK)/texts \
  --work $(QUALITY_WORK)/rows --out $(QUALITY) $(if $(LLAMA_CPP),--llama-cpp "$(LLAMA_CPP)" --gguf "$(BF16_GGUF)")

quality: $(READY)
	$(BIN)/python benchmarks/quality/cut_texts.py "$(CORPUS)" $(QUALITY_WORK)/texts
	$(MEASURE_ROWS)
	$(BIN)/python benchmarks/quality/page_of_rows.py

quality-speed: $(READY)
	$(MEASURE_ROWS) --speed
	$(BIN)/python benchmarks/quality/page_of_rows.py

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks docs examples
	$(BIN)/ruff format --check src tests benchmarks docs examples
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES)
	cextensions/tests/alone.sh
	$(BIN)/mypy

native-test: native-address native-thread native-calls

native-address native-thread: native-%: $(RUNS)  # they are built while the packages of the tests are installed
	PATH="$(CURDIR)/$(BIN):$$PATH" cextensions/tests/run.sh $*

native-calls: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" cextensions/tests/python.sh address -m tests.fuzz.native_calls --cases 800

native-arm:  # under qemu, with a cross compiler
	cextensions/tests/run_arm.sh

# The whole product under both: answers of models in many formats and configurations, a server with clients, and the
# tests that call native code most. It takes up to an hour.
sanitize: native-test
	$(BIN)/python -m tests.sanitized address
	$(BIN)/python -m tests.sanitized thread

# The first minutes of a user, and the tests that need no torch, under every Python of the machine from 3.10 to 3.14; for
# `make long-test` the first minutes alone, under the oldest and the newest.
pythons: $(READY)
	$(BIN)/python -m tests.pythons

pythons-ends: $(READY)
	$(BIN)/python -m tests.pythons --ends

# What only a GPU can show, in the environment at hand: torch for CUDA brings its own Triton.
gpu-test:
	$(PYTHON) -m pytest tests/gpu

# What `make long-test` compiles for one GPU of each maker, some formats and shapes, compiled for others and all.
gpu-compile: $(READY)
	KERNEL_TARGETS=80,86,89,90,100,120,gfx90a,gfx942,gfx1100,gfx1201 $(BIN)/python -m pytest \
	  tests/unit/gpu/test_matrix_compile.py tests/unit/gpu/test_vector_compile.py tests/unit/gpu/test_amd_compile.py

# The same kernels by the Tritons of the oldest and the newest torch and of one between, each installed apart, for ten
# cards: docs/contributing/gpu.md has the table. TRITONS takes options, as in TRITONS="--targets 120 --all".
TRITONS ?=

gpu-tritons: $(READY)
	nice -n 10 $(BIN)/python -m tests.tritons $(TRITONS)

# Every test, of many of which `make test` has a sample (tests/support/sample.py), the native ones under both sanitizers,
# hostile calls under one, and the first minutes under two more versions of Python. It takes an hour and a quarter.
long-test: lint native-test pythons-ends
	$(TESTS)

# Every family and format on two ranks, and ranks in network namespaces, which need root: a few minutes.
ranks-test: $(READY)
	ALL_RANKS=1 $(BIN)/python -m pytest tests/ranks

# What the command needs, and nothing of what the tests do.
$(RUNS): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE_SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "moeinf needs Python 3.10 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt "scikit-build-core>=0.10" "nanobind>=2.2" cmake ninja
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e .
	touch $@

# torch comes first and from constraints.txt: a CPU machine must not download CUDA packages for it. What was built for
# the command is not compiled again.
$(READY): $(RUNS)
	$(BIN)/python -m pip install -q -c constraints.txt torch numpy 2>/dev/null || \
	  $(BIN)/python -m pip install -q -c constraints.txt --extra-index-url $(TORCH_CPU_INDEX) torch numpy
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build
