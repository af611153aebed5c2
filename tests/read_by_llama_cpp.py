#!/usr/bin/env python3
"""llama.cpp opens the GGUF files that mambo writes, and computes the same with them.

Needs the Python package llama-cpp-python, and `cargo build --release` before. For every type the two programs'
logits on the golden text are compared; both quantise activations to 8 bits, each in its own way, so they
agree to a small divergence and not to the bit.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import llama_cpp
import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAMBO = ROOT / "target/release/mambo"
MODEL = ROOT / "models/tiny-hybrid"
GOLDEN = ROOT / "tests/fixtures/quant/tiny-hybrid.safetensors"
TYPES = ["q4_mix", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl",
         "iq4_xs", "mxfp4", "nvfp4", "q3_k", "q2_k"]
# Mean nats between the two programs on one file: what 8-bit activations cost, with room.
MOST = 5e-3


def tensor(path, name):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        begin, end = header[name]["data_offsets"]
        file.seek(start + begin)
        kind = {"F32": "<f4", "I64": "<i8", "I32": "<i4"}[header[name]["dtype"]]
        return numpy.frombuffer(file.read(end - begin), kind).reshape(header[name]["shape"])


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


def main():
    ids = [int(token) for token in tensor(GOLDEN, "input_ids")]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        file, out = pathlib.Path(folder) / "model.gguf", pathlib.Path(folder) / "logits.safetensors"
        for kind in TYPES:
            for arguments in (["quantize", "-m", MODEL, "-o", file, "--type", kind, "--force"],
                              ["logits", "-m", file, "--ids-file", GOLDEN, "-o", out]):
                subprocess.run([MAMBO, *arguments], check=True, capture_output=True)
            model = llama_cpp.Llama(str(file), n_ctx=256, n_batch=256, logits_all=True, verbose=False)
            model.eval(ids)
            theirs = log_softmax(numpy.array(model.scores[:len(ids)]))
            ours = log_softmax(tensor(out, "logits"))
            model.close()
            nats = (numpy.exp(theirs) * (theirs - ours)).sum(-1).mean()
            print(f"{kind:8} {nats:.2e} nats between llama.cpp and mambo", flush=True)
            if not nats <= MOST:
                failed.append(kind)
    if failed:
        sys.exit(f"llama.cpp and mambo compute different things with {', '.join(failed)}")


main()
