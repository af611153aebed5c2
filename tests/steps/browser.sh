# The server's page, and the package and page that run the engine in a browser.

has_new_node() {
  node -e 'const [major, minor] = process.versions.node.split(".").map(Number);
    process.exit(major > 20 || (major === 20 && minor >= 19) ? 0 : 1)' 2>/dev/null
}

# Runs a suite of Node's and shows what counts: SUITE. Tests that find no Chromium skip themselves and say so.
run_suite() {
  local said
  said=$("$1" --test-reporter=tap) || { echo "$said" && return 1; }
  grep -E '^# (pass|fail|skipped) |# SKIP' <<<"$said" | sort | uniq -c | sed 's/^ *[0-9]* //'
}

tests_page() {
  if has_new_node; then
    run_suite crates/server/page/tests/run
  else
    echo "SKIPPED: Node 20.19 or newer runs its tests, and could not be installed"
  fi
}

builds_browser_package() {
  rm -rf target/web
  if ! has_new_node || ! command -v npm >/dev/null 2>&1; then
    echo "SKIPPED: Node 20.19 or newer with npm builds it, and could not be installed"
  elif ! problem=$(rustup target add "$browser" 2>&1); then
    echo "SKIPPED: rustup cannot install the target $browser: $problem"
  elif ! problem=$(cd web && npm ci --no-audit --no-fund 2>&1); then
    echo "SKIPPED: npm cannot fetch its tools: $problem"
  else
    # Not `cargo xtask`, which would wait for the folder in which everything else is compiled.
    cargo run --quiet --release --locked --package xtask --target-dir target/xtask -- web
  fi
}

tests_browser_package() {
  if [ -d target/web/site ]; then
    run_suite web/tests/run
  else
    echo "SKIPPED: it was not built"
  fi
}
