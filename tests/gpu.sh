#!/usr/bin/env bash
# The tests that need a GPU, for machines with one and without Rust.
#   tests/gpu.sh pack FOLDER   builds them and puts them with their files into FOLDER
#   FOLDER/gpu.sh run          runs them there: contracts, golden files, same bits; compute-sanitizer where it is installed
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
  { build -p mambo-cuda --test contracts; build -p mambo-engine --test golden --test same_bits --test families; } |
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
  try ./golden
  try ./families
  try ./same_bits
  if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck synccheck; do
      # Large cases take minutes under a tool that watches every access; small ops show the same mistakes.
      try compute-sanitizer --tool "$tool" --error-exitcode 1 ./contracts rms_norm ssm_step attention choose --kernels kernels
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
  *) sed -n '2,4p' "$0"; exit 2 ;;
esac
