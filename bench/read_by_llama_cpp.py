#!/usr/bin/env python3
"""llama.cpp opens the GGUF files that mambo writes, and computes the same with them.

Needs the Python package llama-cpp-python, and `cargo build --release` before. For every type the two programs'
logits on the golden text are compared; both quantise activations to 8 bits, each in its own way, so they
agree to a small divergence and not to the bit.
"""

import pathlib
import subprocess
import sys
import tempfile

import llama_cpp
import numpy

from golden import GOLDEN, MODEL, ROOT, divergence, tensor

MAMBO = ROOT / "target/release/mambo"
TYPES = ["q4_mix", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl",
         "iq4_xs", "mxfp4", "nvfp4", "q3_k", "q2_k"]
# Mean nats between the two programs on one file: what 8-bit activations cost, with room.
MOST = 5e-3



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
            nats = divergence(numpy.array(model.scores[:len(ids)]), tensor(out, "logits"))
            model.close()
            print(f"{kind:8} {nats:.2e} nats between llama.cpp and mambo", flush=True)
            if not nats <= MOST:
                failed.append(kind)
    if failed:
        sys.exit(f"llama.cpp and mambo compute different things with {', '.join(failed)}")


main()
