#!/usr/bin/env python3
"""Has schemathesis send requests after the OpenAPI document of `mambo serve` with the built-in model: no answer is a
server error, every answer is what the document says.

    target/clients/bin/python tests/clients/conformance.py [PROGRAM]
"""

import os
import pathlib
import subprocess
import sys

from server import Server

HERE = pathlib.Path(__file__).resolve().parent
# What the document forbids may still be taken, for clients that send more than they should, and what it allows may
# still be refused: a schema cannot say which grammars compile or which template takes which roles.
LENIENT = "negative_data_rejection,positive_data_acceptance"
# A server without keys ignores them.
KEYS = "ignored_auth"


def main():
    with Server() as server:
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "conformance_hooks", "PYTHONPATH": str(HERE)}
        schemathesis = pathlib.Path(sys.executable).with_name("st")
        # The live view never ends; the tests of the server read it.
        command = [schemathesis, "run", f"{server.address}/openapi.json", "--exclude-path", "/api/mambo/live",
                   "--phases", "examples,fuzzing", "--mode", "all", "--max-examples", "12", "--seed", "1",
                   "--request-timeout", "20", "--exclude-checks", f"{LENIENT},{KEYS}", "--no-color"]
        sys.exit(subprocess.run(command, env=environment, timeout=180).returncode)


if __name__ == "__main__":
    main()
