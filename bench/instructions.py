#!/usr/bin/env python3
"""Counts instructions per token with the built-in model, and fails where they have grown.

    python3 bench/instructions.py            # compare with bench/instructions.json
    python3 bench/instructions.py --update   # after a change that is worth its instructions

Counts repeat where times do not: valgrind runs the program on one thread with the kernels of the
instruction sets it knows (AVX2), whatever else the machine is doing. Two runs that differ only in the
length of the prompt, or of the answer, give the cost of a token without that of loading.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STORED = pathlib.Path(__file__).with_suffix(".json")
# More than what hash seeds and a new compiler's mood change, less than what a user would feel.
TOLERANCE = 0.03
WORD = "dragon "
PROMPT, ANSWER = 128, 32


def count(program, words, tokens):
    """Instructions of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", str(program), "run",
                   "--raw", "--temp", "0", "-t", "1", "-n", str(tokens), "--json", WORD * words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"`{' '.join(command[:4])} ...` failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    return int(found[1]), answer["prompt_tokens"], answer["completion_tokens"]


def measure(program):
    base, prompt, answer = count(program, 4, 1)
    long, long_prompt, _ = count(program, PROMPT, 1)
    talk, _, long_answer = count(program, 4, ANSWER)
    return {
        "prefill": round((long - base) / (long_prompt - prompt)),
        "decode": round((talk - base) / (long_answer - answer)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mambo", type=pathlib.Path, default=ROOT / "target/release/mambo",
                        help="the program (target/release/mambo)")
    parser.add_argument("--update", action="store_true", help="store what is counted now")
    args = parser.parse_args()
    found = measure(args.mambo)
    if args.update:
        STORED.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    grown = False
    for phase, now in found.items():
        change = now / stored[phase] - 1
        grown |= change > TOLERANCE
        print(f"{phase:<8}{now:>14,} instructions per token, {change:+.1%} of the stored count")
    if grown:
        sys.exit(f"more than {TOLERANCE:.0%} over the stored count: find out why, or store it with --update")


if __name__ == "__main__":
    main()
