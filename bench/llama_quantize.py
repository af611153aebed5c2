#!/usr/bin/env python3
"""What llama.cpp's own quantizer makes of the trained model: the divergence `crates/cli/tests/quantize.rs` holds
mambo's to.

    python3 -m venv .venv && .venv/bin/pip install llama-cpp-python numpy
    cargo build --release
    .venv/bin/python bench/llama_quantize.py

Both quantizers start from the same f32 file, and both results are read by mambo's reference backend, which
keeps activations unquantised, on the golden text. Prints a table.
"""

import pathlib
import subprocess
import tempfile

import llama
from golden import GOLDEN, MODEL, ROOT, divergence, tensor

MAMBO = ROOT / "target/release/mambo"


def mambo(*arguments):
    subprocess.run([MAMBO, *arguments], check=True, capture_output=True)


def main():
    print("type      llama.cpp                           mambo")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source, theirs, ours, logits = (folder / n for n in ("f32.gguf", "theirs.gguf", "ours.gguf", "logits.safetensors"))
        mambo("quantize", "-m", MODEL, "-o", source, "--type", "f32")
        for kind, (name, _) in llama.TYPES.items():
            llama.quantize(source, theirs, kind)
            mambo("quantize", "-m", MODEL, "-o", ours, "--type", kind, "--force")
            cells = []
            for file in (theirs, ours):
                mambo("logits", "-m", file, "--ids-file", GOLDEN, "-o", logits, "--reference")
                nats = divergence(tensor(GOLDEN, "logits"), tensor(logits, "logits"))
                cells.append(f"{nats:.3e} {file.stat().st_size / 1e6:6.2f} MB")
            print(f"{kind:8}  {name:10} {cells[0]}     {cells[1]}", flush=True)


main()
