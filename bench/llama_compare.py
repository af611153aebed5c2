#!/usr/bin/env python3
"""Compares the speed of mambo with llama.cpp on one GGUF file, in one run.

    python3 -m venv .venv && .venv/bin/pip install llama-cpp-python
    cargo build --release && target/release/mambo synth nano-4b -o nano-4b.gguf
    .venv/bin/python bench/llama_compare.py nano-4b.gguf

The two programs take turns, each time in a fresh process with the same threads, so that a machine that
slows down or has visitors slows both. Each warms up once before it is measured. A table goes to standard
error, one JSON object to standard output. A ratio above 1 means that mambo is faster.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PHASES = ("prefill", "decode")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="a .gguf file that both programs can load")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens to prefill (512)")
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens to decode (64)")
    parser.add_argument("-r", "--repeats", type=int, default=5, help="turns of each program, at least 3 (5)")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="threads of each program (all cores)")
    parser.add_argument("--mambo", type=pathlib.Path, default=ROOT / "target/release/mambo",
                        help="the program (target/release/mambo)")
    parser.add_argument("--flash-attn", action="store_true", help="turn llama.cpp's flash attention on")
    parser.add_argument("--timeout", type=int, default=900, help="seconds one turn may take (900)")
    parser.add_argument("--llama-turn", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.repeats < 3:
        parser.error("fewer than 3 repeats say nothing about noise")
    if min(args.prompt, args.tokens, args.threads) < 1:
        parser.error("--prompt, --tokens and --threads must be at least 1")
    if not args.model.is_file():
        parser.error(f"there is no file {args.model}; `mambo synth nano-4b -o {args.model}` makes one")
    if importlib.util.find_spec("llama_cpp") is None:
        parser.error(f"{sys.executable} has no llama_cpp; run `{sys.executable} -m pip install llama-cpp-python`, "
                     "or call this script with the Python of an environment that has it")
    if not args.llama_turn and not args.mambo.is_file():
        parser.error(f"there is no program {args.mambo}; run `cargo build --release`, or give --mambo")
    return args


def llama_turn(args):
    """One turn of llama.cpp, through its C interface: no sampling, no copies of logits."""
    import llama_cpp

    room = args.prompt + args.tokens + 8
    model = llama_cpp.Llama(str(args.model), n_ctx=room, n_batch=args.prompt, n_ubatch=min(args.prompt, 512),
                            n_threads=args.threads, n_threads_batch=args.threads,
                            flash_attn=args.flash_attn, verbose=False)
    context = model.ctx
    vocab = model.n_vocab()
    state = 1

    def ids(count):
        # The same generator as `mambo bench`: ids that nothing can predict, the same in every run.
        nonlocal state
        taken = []
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            taken.append((state >> 33) % vocab)
        return (llama_cpp.llama_token * count)(*taken)

    def decode(tokens):
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")

    def forget():
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)

    def timed(work):
        llama_cpp.llama_synchronize(context)
        start = time.perf_counter()
        for tokens in work:
            decode(tokens)
        llama_cpp.llama_synchronize(context)
        return time.perf_counter() - start

    rates = {}
    for is_warm in (False, True):
        forget()
        tokens = args.prompt if is_warm else min(args.prompt, 32)
        seconds = timed([ids(tokens)])
        if is_warm:
            rates["prefill"] = args.prompt / seconds
    for is_warm in (False, True):
        forget()
        decode(ids(1))
        steps = args.tokens if is_warm else min(args.tokens, 4)
        seconds = timed([ids(1) for _ in range(steps)])
        if is_warm:
            rates["decode"] = args.tokens / seconds
    print(json.dumps(rates))


def output_of(command, timeout):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        sys.exit(f"{command[0]} failed with status {done.returncode}: {lines[-1]}")
    return done.stdout


def run_llama(args):
    flags = ["-p", args.prompt, "-n", args.tokens, "-t", args.threads, "--llama-turn"]
    flags += ["--flash-attn"] if args.flash_attn else []
    return json.loads(output_of([sys.executable, __file__, args.model, *flags], args.timeout))


def run_mambo(args):
    flags = ["-p", args.prompt, "-n", args.tokens, "-t", args.threads, "-b", 1, "-r", 1, "--json"]
    found = json.loads(output_of([args.mambo, "bench", "-m", args.model, *flags], args.timeout))
    return {row["phase"]: row["tokens_per_second"]["median"] for row in found["results"]}


def commit():
    def git(*words):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    # Results and the pages made of them change while rows are measured.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results", ":!docs")
    return name + (" with changes" if changed else "")


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def summary(args, turns):
    result = {
        "model": args.model.name,
        "model_bytes": args.model.stat().st_size,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "machine": processor(),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "repeats": args.repeats,
        "flash_attn": args.flash_attn,
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "tokens": {"prefill": args.prompt, "decode": args.tokens},
    }
    for phase in PHASES:
        ours = [turn["mambo"][phase] for turn in turns]
        theirs = [turn["llama_cpp"][phase] for turn in turns]
        pairs = [a / b for a, b in zip(ours, theirs)]
        result[phase] = {
            "mambo": {"median": statistics.median(ours), "all": ours},
            "llama_cpp": {"median": statistics.median(theirs), "all": theirs},
            "ratio": statistics.median(ours) / statistics.median(theirs),
            "ratio_of_turns": {"min": min(pairs), "max": max(pairs)},
        }
    return result


def show(result):
    say = lambda text: print(text, file=sys.stderr)
    say(f"\n{result['model']}, {result['model_bytes'] / 1e9:.2f} GB; {result['machine']}, "
        f"{result['threads']} threads of {result['cores']}")
    say(f"{result['date']}, mambo {result['commit']}, llama-cpp-python {result['llama_cpp_python']}, "
        f"medians of {result['repeats']} turns\n")
    say(f"{'tokens/s':<14}{'mambo':>10}{'llama.cpp':>12}{'ratio':>8}{'turns':>14}")
    for phase in PHASES:
        row = result[phase]
        turns = f"{row['ratio_of_turns']['min']:.2f}..{row['ratio_of_turns']['max']:.2f}"
        say(f"{phase + ' ' + str(result['tokens'][phase]):<14}{row['mambo']['median']:>10.1f}"
            f"{row['llama_cpp']['median']:>12.1f}{row['ratio']:>8.2f}{turns:>14}")


def measure(args):
    """All turns of both programs, and what they come to."""
    turns = []
    for index in range(args.repeats):
        # Who goes first changes, so that neither always meets the warmer machine.
        order = [("mambo", run_mambo), ("llama_cpp", run_llama)]
        turn = {}
        for name, run in order if index % 2 == 0 else reversed(order):
            try:
                turn[name] = run(args)
            except subprocess.TimeoutExpired:
                sys.exit(f"a turn of {name} took more than {args.timeout} s; raise --timeout or lower -p and -n")
            rates = ", ".join(f"{phase} {turn[name][phase]:.1f}/s" for phase in PHASES)
            print(f"turn {index + 1}/{args.repeats} {name:<10}{rates}", file=sys.stderr)
        turns.append(turn)
    result = summary(args, turns)
    show(result)
    return result


def main():
    args = arguments()
    if args.llama_turn:
        llama_turn(args)
        return
    print(json.dumps(measure(args)))


if __name__ == "__main__":
    main()
