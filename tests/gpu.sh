#!/usr/bin/env bash
# The tests that need a GPU, for machines with one and without Rust.
#   tests/gpu.sh pack FOLDER   builds them and puts them with their files into FOLDER
#   FOLDER/gpu.sh run          runs them there: contracts, fusions, golden files, same bits, a soak of SOAK_SECONDS (600), and
#                              every kernel under compute-sanitizer where it is installed
set -euo pipefail

pack() {
  cd "$(dirname "$0")/.."
  mkdir -p "$1/tests/fixtures"
  build() { cargo test --release --locked --no-run --message-format=json "$@" | python3 -c '
import json, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made["target"]["kind"] == ["test"]:
        print(made["target"]["name"], made["executable"])'; }
  { build -p mambo-cuda --test contracts --test fusion; build -p mambo-engine --test golden --test same_bits --test families --test soak; } |
    while read -r name path; do
      cp "$path" "$1/$name"
      strip "$1/$name"
    done
  cp -r tests/fixtures/checkpoints tests/fixtures/quant tests/fixtures/families "$1/tests/fixtures/"
  cp tests/gpu.sh "$1/"
  du -sh "$1"
}

run() {
  cd "$(dirname "$0")"
  local failed=()
  try() {
    printf '\n== %s\n' "$*"
    "$@" || failed+=("$1")
  }
  try ./contracts --kernels kernels
  try ./fusion --kernels kernels
  try ./golden
  try ./families
  try ./same_bits
  try ./soak --seconds "${SOAK_SECONDS:-600}"
  if command -v compute-sanitizer >/dev/null 2>&1; then
    # A process for every row, each on its smallest case: tools that watch every access take minutes for large ones.
    local rows row tool
    rows=$(./contracts --list)
    for tool in memcheck initcheck racecheck synccheck; do
      for row in $rows; do
        timeout 300 compute-sanitizer --tool "$tool" --error-exitcode 1 \
          ./contracts "$row" --smallest 1 --kernels kernels >"$tool.log" 2>&1 ||
          { failed+=("$tool:$row"); tail -20 "$tool.log"; }
      done
      echo "$tool: $(wc -w <<<"$rows") rows"
    done
  else
    echo "SKIPPED: compute-sanitizer is not installed"
  fi
  if ((${#failed[@]})); then
    echo "failed: ${failed[*]}"
    exit 1
  fi
  echo "all good"
}

case "${1:-}" in
  pack) pack "${2:?a folder}" ;;
  run) run ;;
  *) sed -n '2,5p' "$0"; exit 2 ;;
esac
