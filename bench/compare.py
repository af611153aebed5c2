#!/usr/bin/env python3
"""Compares two programs on one model, in turns: two builds of mambo, or mambo and llama.cpp's `llama-bench`.

    python3 bench/compare.py old/mambo target/release/mambo nano-4b.gguf -p 512 -b 1,8 --least 0.98
    python3 bench/compare.py build/bin/llama-bench target/release/mambo nano-4b.gguf

MODEL is a file that both can load, or `built-in`. `ratio` is NEW's median over OLD's, so above 1 NEW is faster;
`pairs` is the median of the ratios of single turns, which suits a machine whose memory changes its speed within
minutes: the two halves of a turn find the same machine. `--least` judges the pairs. A table goes to standard error,
one JSON object to standard output. Comparing a program with itself tells how much of a ratio is noise.
"""

import argparse
import datetime
import json
import pathlib
import sys

import programs
from programs import say


def numbers(text):
    return [int(word) for word in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", metavar="OLD", type=pathlib.Path)
    parser.add_argument("new", metavar="NEW", type=pathlib.Path)
    parser.add_argument("model", metavar="MODEL", help=f"a .gguf file, or `{programs.BUILT_IN}`")
    parser.add_argument("-p", "--prompt", type=numbers, default=[512], metavar="N,...", help="tokens to prefill (512)")
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens to decode (64)")
    parser.add_argument("-b", "--batch", type=numbers, default=[1], metavar="B,...",
                        help="sequences decoded together (1)")
    parser.add_argument("-r", "--repeats", type=int, default=1, help="measurements within a turn (1)")
    parser.add_argument("--turns", type=int, default=9, help="turns of each program, at least 3 (9)")
    parser.add_argument("-t", "--threads", type=int, default=programs.cores(), help="of each program (all cores)")
    parser.add_argument("--least", type=float, metavar="RATIO", help="fail where the median of the pairs is below this")
    parser.add_argument("--idle", action="store_true",
                        help="take a turn again if other processes took over 5 %% of the cores' time during it")
    parser.add_argument("--timeout", type=int, default=900, help="seconds one turn may take (900)")
    args = parser.parse_args()
    if args.turns < 3:
        parser.error("fewer than 3 turns say nothing about noise")
    if args.model != programs.BUILT_IN and not pathlib.Path(args.model).exists():
        parser.error(f"there is no {args.model}; `mambo synth nano-4b -o {args.model}` makes one")
    return args


def show(found):
    say(f"\n{'tokens/s':<14}{'old':>10}{'new':>10}{'ratio':>8}{'pairs':>8}")
    for key, row in found.items():
        pairs = row["ratio_of_turns"]
        say(f"{key:<14}{row['old']['median']:>10.1f}{row['new']['median']:>10.1f}{row['ratio']:>8.3f}"
            f"{pairs['median']:>8.3f}  ({pairs['min']:.2f} to {pairs['max']:.2f})")


def main():
    args = arguments()
    both = {"old": programs.program(args.old, args.threads), "new": programs.program(args.new, args.threads)}
    shape = (args.model, args.prompt, args.tokens, args.batch, args.repeats)
    taken, other_load = programs.take_turns(both, shape, args.turns, args.timeout, idle=args.idle)
    if taken is None:
        sys.exit("the machine was never idle for three turns")
    found = programs.summary(taken, "new", "old")
    show(found)
    print(json.dumps({
        "model": pathlib.Path(args.model).name, "machine": programs.processor(), "threads": args.threads,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "turns": len(taken), "other_load": other_load,
        **{name: {"program": programs.digest(one.path), "command": " ".join(map(str, one.command(*shape)))}
           for name, one in both.items()},
        "rates": found}))
    slower = [key for key, row in found.items() if args.least and row["ratio_of_turns"]["median"] < args.least]
    if slower:
        sys.exit(f"NEW is below {args.least} of OLD in {', '.join(slower)}")


if __name__ == "__main__":
    main()
