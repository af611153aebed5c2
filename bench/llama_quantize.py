#!/usr/bin/env python3
"""What llama.cpp's own quantizer makes of the trained model: the divergence `crates/cli/tests/quantize.rs` holds
mambo's to.

    python3 -m venv .venv && .venv/bin/pip install llama-cpp-python numpy
    cargo build --release
    .venv/bin/python bench/llama_quantize.py

Both quantizers start from the same f32 file, and both results are read by mambo's reference backend, which
keeps activations unquantised, on the golden text. Prints a table.
"""

import ctypes
import json
import pathlib
import struct
import subprocess
import tempfile

import llama_cpp
import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAMBO = ROOT / "target/release/mambo"
MODEL = ROOT / "models/tiny-hybrid"
GOLDEN = ROOT / "tests/fixtures/quant/tiny-hybrid.safetensors"
# mambo's type and llama.cpp's name and number for it.
TYPES = [("q8_0", "Q8_0", 7), ("q6_k", "Q6_K", 18), ("q5_k", "Q5_K_M", 17), ("q5_1", "Q5_1", 9),
         ("q5_0", "Q5_0", 8), ("q4_k", "Q4_K_M", 15), ("q4_1", "Q4_1", 3), ("q4_0", "Q4_0", 2),
         ("iq4_nl", "IQ4_NL", 25), ("iq4_xs", "IQ4_XS", 30), ("mxfp4", "MXFP4_MOE", 38),
         ("q3_k", "Q3_K_M", 12), ("q2_k", "Q2_K", 10)]


def tensor(path, name):
    """One f32 tensor of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        begin, end = header[name]["data_offsets"]
        file.seek(start + begin)
        return numpy.frombuffer(file.read(end - begin), "<f4").reshape(header[name]["shape"])


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


def mambo(*arguments):
    subprocess.run([MAMBO, *arguments], check=True, capture_output=True)


def divergence(folder, model, want):
    out = folder / "logits.safetensors"
    mambo("logits", "-m", model, "--ids-file", GOLDEN, "-o", out, "--reference")
    got = log_softmax(tensor(out, "logits"))
    return (numpy.exp(want) * (want - got)).sum(-1).mean()


def main():
    want = log_softmax(tensor(GOLDEN, "logits"))
    print("type      llama.cpp                           mambo")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source, theirs, ours = (folder / name for name in ("f32.gguf", "theirs.gguf", "ours.gguf"))
        mambo("quantize", "-m", MODEL, "-o", source, "--type", "f32")
        for kind, name, number in TYPES:
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype = number
            code = llama_cpp.llama_model_quantize(bytes(source), bytes(theirs), ctypes.byref(params))
            if code != 0:
                raise SystemExit(f"llama.cpp cannot make {name}")
            mambo("quantize", "-m", MODEL, "-o", ours, "--type", kind, "--force")
            row = [(divergence(folder, file, want), file.stat().st_size / 1e6) for file in (theirs, ours)]
            print(f"{kind:8}  {name:10} {row[0][0]:.3e} {row[0][1]:6.2f} MB     {row[1][0]:.3e} {row[1][1]:6.2f} MB",
                  flush=True)


main()
