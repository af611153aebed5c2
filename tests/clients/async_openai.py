#!/usr/bin/env python3
"""Runs the suite of the Rust client in async-openai/ against `mambo serve` with the built-in model.

    cargo build --release
    python3 tests/clients/async_openai.py [PROGRAM]
"""

import subprocess
import sys

from server import ROOT, Server


def main():
    manifest = ROOT / "tests/clients/async-openai/Cargo.toml"
    with Server() as server:
        suite = ["cargo", "run", "--quiet", "--locked", "--manifest-path", manifest, "--target-dir",
                 ROOT / "target/async-openai", "--", server.address]
        status = subprocess.run(suite).returncode
    sys.exit(status)


if __name__ == "__main__":
    main()
