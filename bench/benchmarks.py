#!/usr/bin/env python3
"""Measures everything that docs/benchmarks.md tells, beside llama.cpp where it takes part, and writes that page.

    python3 -m venv .venv && .venv/bin/pip install llama-cpp-python
    cargo build --release
    .venv/bin/python bench/benchmarks.py --models /tmp/models        # measures, then writes
    python3 bench/benchmarks.py --write                              # writes from bench/results alone

Models are made with `mambo synth` where they are missing (nano-30b takes 18 GB). Results of one machine are
one file in bench/results; `--only` measures some rows again and keeps the others. About 40 minutes on two cores.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import llama_compare as compare

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = pathlib.Path(__file__).parent / "results"
TYPES = ("q4_0", "q8_0", "q4_k", "iq4_nl", "mxfp4", "bf16")
VERSUS = ("tiny-hybrid q8_0", *(f"nano-4b {t}" for t in TYPES), "nano-30b q4_0")
# Rows with a shorter prompt, to be done within the hour.
QUICK = VERSUS[2:-1]
OWN = ("scaling", "batch 4b", "batch 30b", "load", "threads")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("/tmp/mambo-models"),
                        help="where models are made (/tmp/mambo-models)")
    parser.add_argument("--only", action="append", metavar="ROW", help=f"one of {', '.join(VERSUS + OWN)}")
    parser.add_argument("--name", help="name of the result file (the processor and its cores)")
    parser.add_argument("-r", "--repeats", type=int, default=5, help="turns of each program (5)")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--mambo", type=pathlib.Path, default=ROOT / "target/release/mambo")
    parser.add_argument("--timeout", type=int, default=900, help="seconds one turn may take (900)")
    parser.add_argument("--write", action="store_true", help="only write the page from stored results")
    args = parser.parse_args()
    for row in args.only or ():
        if row not in VERSUS + OWN:
            parser.error(f"there is no row `{row}`; there are {', '.join(VERSUS + OWN)}")
    return args


def say(text):
    print(text, file=sys.stderr, flush=True)


def model(args, row):
    """The file of a row, made if it is missing."""
    shape, dtype = row.split()
    path = args.models / f"{shape}-{dtype}.gguf"
    if not path.exists():
        args.models.mkdir(parents=True, exist_ok=True)
        say(f"making {path}")
        if shape == "tiny-hybrid":
            command = ["quantize", "-m", ROOT / "models/tiny-hybrid", "--type", dtype, "-o", path]
        else:
            command = ["synth", shape, "--quant", dtype, "-o", path]
        subprocess.run([str(c) for c in (args.mambo, *command)], check=True, stdout=subprocess.DEVNULL)
    return path


def bench(args, row, *flags, threads=None):
    """What `mambo bench` says."""
    command = [args.mambo, "bench", "-m", model(args, row), "--json", "-t", threads or args.threads, *flags]
    return json.loads(compare.output_of(command, args.timeout))


def rates(found, phase, by):
    """Tokens per second of a phase, by batch, depth or tokens."""
    return {r[by]: r["tokens_per_second"]["median"] for r in found["results"] if r["phase"] == phase}


def versus(args, row):
    turn_args = argparse.Namespace(
        model=model(args, row), prompt=128 if row in QUICK else 512,
        tokens=256 if row.startswith("tiny") else 32, threads=args.threads,
        repeats=args.repeats, mambo=args.mambo, flash_attn=False, timeout=args.timeout)
    result = compare.measure(turn_args)
    # Where states are read as well: before a chunk of the scan is full there are none.
    found = bench(args, row, "-p", 0, "-n", turn_args.tokens, "-b", 1, "-d", 64, "-r", 3)
    result["share_of_bandwidth"] = found["results"][0]["share_of_bandwidth"]
    return result


def scaling(args):
    prompts = bench(args, "nano-4b q4_0", "-p", "512,4096", "-n", 0, "-r", 3)
    depths = bench(args, "nano-4b q4_0", "-p", 0, "-n", 32, "-b", 1, "-d", "0,16384", "-r", 7)
    return {"prefill": rates(prompts, "prefill", "tokens"), "decode_at_depth": rates(depths, "decode", "depth")}


def batch(args, row):
    """One sequence and eight at the start, and after a prompt: until a chunk of the scan is full there is no state
    to read, which makes eight faster there than later."""
    found = bench(args, row, "-p", 0, "-n", 32, "-b", "1,8", "-d", "0,512", "-r", 5)["results"]
    start, after = ({str(r["batch"]): r["tokens_per_second"]["median"] for r in found if r["depth"] == depth}
                    for depth in (0, 512))
    return {**start, "after_512": after}


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
    cores = len(os.sched_getaffinity(0))
    counts = sorted({1, *(n for n in (2, 4, 8) if n <= cores), cores, cores + cores // 2})
    found = {}
    for n in counts:
        own = bench(args, "nano-4b q4_0", "-p", 512, "-n", 32, "-b", 1, "-r", 2, threads=n)["results"]
        found[n] = {r["phase"]: r["tokens_per_second"]["median"] for r in own}
    return found


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def measure(args):
    machine = compare.processor()
    path = RESULTS / f"{slug(args.name or f'{machine} {os.cpu_count()} cores')}.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    stored.update({
        "machine": stored.get("machine", machine), "cores": os.cpu_count(), "threads": args.threads,
        "commit": compare.commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    })
    rows, commits = stored.setdefault("rows", {}), stored.setdefault("commits", {})
    for row in args.only or VERSUS + OWN:
        say(f"\n== {row}")
        if row in VERSUS:
            rows[row] = versus(args, row)
        else:
            own = {"scaling": scaling, "load": load, "threads": threads,
                   "batch 4b": lambda a: batch(a, "nano-4b q4_0"),
                   "batch 30b": lambda a: batch(a, "nano-30b q4_0")}[row]
            rows[row] = own(args)
            say(json.dumps(rows[row]))
        commits[row] = stored["commit"]
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    options = arguments()
    if not options.write:
        measure(options)
    import benchmarks_page
    benchmarks_page.write(RESULTS, ROOT / "docs")
