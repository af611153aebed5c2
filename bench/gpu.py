#!/usr/bin/env python3
"""Every number that docs/gpu.md shows, by one call on a machine with a GPU:

    bench/gpu.py [--program target/release/mambo] [--models FOLDER] [--only NAME]... [--quick]

Makes the models (random weights in the real shapes) where FOLDER lacks them, measures them, and prints a table with the
command beside every number; results also go to FOLDER/gpu.json. Needs about 120 GB of disk for all of them (`--only`
chooses). Also compares the trained model's answers on the GPU with the CPU's.
"""

import argparse
import array
import json
import math
import statistics
import struct
import subprocess
import sys
from pathlib import Path

# Name, preset, type, and what is measured: prompts, sequences, depths.
MODELS = {
    "nano-30b-q4_0": ("nano-30b", "q4_0", [512, 2048, 8192], [1, 8, 32], []),
    "nano-30b-q4_0-long": ("nano-30b", "q4_0", [32768], [1], [1024, 65000]),
    "nano-30b-q8_0": ("nano-30b", "q8_0", [2048], [1], []),
    "nano-30b-bf16": ("nano-30b", "bf16", [2048], [1], []),
    "nano-4b-q4_0": ("nano-4b", "q4_0", [512, 2048], [1, 8], []),
    "super-q4_0": ("super", "q4_0", [2048], [1, 8], []),
}
# Mean KL from the CPU's answers at equal weights.
MOST_KL = 1e-4


def run(command, timeout):
    """What a command prints, and a line on its failure."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"took longer than {timeout} s"
    if done.returncode != 0:
        return None, (done.stderr or done.stdout).strip().splitlines()[-1:]
    return done.stdout, None


def model_file(args, preset, dtype):
    path = args.models / f"{preset}-{dtype}.gguf"
    if not path.exists():
        print(f"making {path}", file=sys.stderr)
        _, problem = run([args.program, "synth", preset, "-o", str(path), "--quant", dtype], 3600)
        if problem:
            raise SystemExit(f"cannot make {path}: {problem}")
    return path


def measure(args, name):
    preset, dtype, prompts, sequences, depths = MODELS[name]
    path = model_file(args, preset, dtype)
    room = max(prompts + [max(depths, default=0) + 200]) + 1000
    command = [
        args.program, "bench", "-m", str(path), "--backend", "cuda", "--json",
        "-p", ",".join(map(str, prompts)), "-n", "64", "-b", ",".join(map(str, sequences)),
        "-r", "1" if args.quick or depths else "2", "--context", str(room),
    ]
    if depths:
        command += ["-d", ",".join(map(str, depths))]
    printed, problem = run(command, 1800)
    return {"command": " ".join(command), "problem": problem, "results": printed and json.loads(printed)}


def logits(path):
    """The rows of the only tensor of a safetensors file of f32."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    tensor = json.loads(data[8 : 8 + length])["logits"]
    positions, vocab = tensor["shape"]
    begin, end = tensor["data_offsets"]
    values = array.array("f", data[8 + length + begin : 8 + length + end])
    return [values[row * vocab : (row + 1) * vocab] for row in range(positions)]


def log_probabilities(row):
    largest = max(row)
    total = math.log(sum(math.exp(value - largest) for value in row)) + largest
    return [value - total for value in row]


def compare_with_cpu(args):
    """Mean KL of the built-in model's answers on the GPU from the CPU's, over random tokens and their predictions."""
    ids = args.models / "ids.txt"
    state, tokens = 1, []
    for _ in range(256):
        state = (state * 1103515245 + 12345) % 2**31
        tokens.append(str(state // 2**16 % 1000))
    ids.write_text(" ".join(tokens))
    found = {}
    for backend in ("cpu", "cuda"):
        path = args.models / f"{backend}.safetensors"
        command = [args.program, "logits", "--ids-file", str(ids), "-o", str(path), "--backend", backend]
        _, problem = run(command, 600)
        if problem:
            return {"command": " ".join(command), "problem": problem}
        found[backend] = logits(path)
    total = 0.0
    for base, other in zip(found["cpu"], found["cuda"]):
        base, other = log_probabilities(base), log_probabilities(other)
        total += sum(math.exp(p) * (p - q) for p, q in zip(base, other))
    kl = total / len(found["cpu"])
    problem = None if kl < MOST_KL else f"mean KL {kl:.3g}, asked for: below {MOST_KL}"
    return {"command": " ".join(command), "problem": problem, "results": {"mean_kl": kl}}


def rows(value, path=()):
    """The numbers of a result with where they stand."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from rows(inner, (*path, key))
    elif isinstance(value, list):
        if value and all(isinstance(item, (int, float)) for item in value):
            yield path, statistics.median(value)
        else:
            for index, inner in enumerate(value):
                yield from rows(inner, (*path, str(index)))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/mambo")
    parser.add_argument("--models", type=Path, default=Path("target/gpu-models"))
    parser.add_argument("--only", action="append", choices=sorted(MODELS))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in args.only or MODELS:
        found[name] = measure(args, name)
        print(f"\n{name}\n    {found[name]['command']}")
        if found[name]["problem"]:
            print(f"    failed: {found[name]['problem']}")
            continue
        for path, value in rows(found[name]["results"]):
            print(f"    {'.'.join(path):60} {value:,.4g}")
    found["kl"] = compare_with_cpu(args)
    print(f"\nanswers on the GPU and on the CPU\n    {found['kl']['command']}")
    print(f"    {found['kl']['problem'] or found['kl']['results']}\n    asked for: mean KL below {MOST_KL}")
    (args.models / "gpu.json").write_text(json.dumps(found, indent=1))
    if any(result["problem"] for result in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
