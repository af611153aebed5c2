# Steps that cargo runs.

# Machines that must compile, and the crates that must do so in a browser: all that need neither files nor a network.
machines=(aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-pc-windows-msvc)
browser=wasm32-unknown-unknown
browser_crates=(tensor checkpoint kernel graph model plan cpu engine text runtime web testkit)

has_format() {
  if cargo fmt --version >/dev/null 2>&1; then
    cargo fmt --all --check
  else
    echo "SKIPPED: rustfmt is not installed"
  fi
}

# What the README tells a newcomer to do.
builds_program() {
  cargo build --release --locked
  local answer
  answer=$(./target/release/mambo run --temp 0 --no-think "What is 17 + 25?" 2>/dev/null)
  echo "$answer"
  case "$answer" in
    *42*) ;;
    *) echo "the built-in model cannot add 17 and 25" && return 1 ;;
  esac
}

# In the profile that people build, so that everything is compiled once. The whole workspace, because fewer packages
# choose fewer features of the crates below them, which would then be compiled again.
compiles_tests() {
  local build=(cargo test --workspace --release --locked --no-run --message-format=json-render-diagnostics)
  "${build[@]}" >"$work/tests.json"
  # Those that `cargo test` does not run by itself.
  "${build[@]}" --test contracts --test fusion --test webgpu >"$work/programs.json"
}

# The executables of tests that are in lists of cargo's, as lines of the folder of the crate, the name, and the file.
executables() {
  cat "$@" | sed -n 's|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"name":"\([^"]*\)".*"test":true},"features":.*"executable":"\([^"]*\)".*|\1 \2 \3|p'
}

# Runs a test of a crate as cargo does: CRATE NAME [ARGUMENT]...
run_test() {
  local folder=$PWD/crates/$1 found
  found=$(executables "$work/programs.json" "$work/tests.json" | grep "^$folder $2 ")
  (cd "$folder" && CARGO_MANIFEST_DIR=$folder "${found##* }" "${@:3}")
}

runs_tests() {
  local folder name file failed= count=0
  while read -r folder name file; do
    printf '\n     Running %s of %s\n' "$name" "${folder#"$PWD/"}"
    (cd "$folder" && CARGO_MANIFEST_DIR=$folder "$file") || failed+=" $name of ${folder#"$PWD/"},"
    count=$((count + 1))
  done < <(executables "$work/tests.json")
  printf '\n%d executables; failed:%s\n' $count "${failed:- none}"
  [ $count -gt 0 ] && [ -z "$failed" ]
}

# Examples in documentation, which have no executables.
runs_examples() {
  cargo test --workspace --release --locked --doc --no-fail-fast
}

# The kernels would be compiled once more for these, so they have a profile that does it in seconds.
runs_unit_tests_of_cpu() {
  cargo test --package mambo-cpu --lib --profile unit --locked
}

# Clippy checks like `cargo check` and fails on warnings as well. In the profile of everything else, so that macros and
# build scripts are compiled once.
checks() {
  if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy --quiet --release --locked "$@" -- -D warnings
  else
    echo "SKIPPED lints: clippy is not installed"
    cargo check --quiet --release --locked "$@"
  fi
}

# All code is linted once, and what machines have of their own on each of them. Not on this one, whose libraries would be
# checked for it alone.
has_no_lints() {
  if ! command -v rustup >/dev/null 2>&1; then
    checks --workspace --all-targets
    echo "SKIPPED on other machines: rustup, which brings the targets, is not installed"
  elif ! problem=$(rustup target add "${machines[@]}" "$browser" 2>&1); then
    checks --workspace --all-targets
    echo "SKIPPED on other machines: rustup cannot install the targets: $problem"
  else
    checks --workspace --all-targets --target="${machines[0]}"
    local others=("${machines[@]:1}")
    checks --workspace "${others[@]/#/--target=}"
    checks "${browser_crates[@]/#/--package=mambo-}" --target="$browser"
    echo "${machines[*]}: all crates; $browser: ${browser_crates[*]}"
  fi
}
