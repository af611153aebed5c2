#!/usr/bin/env python3
"""llama.cpp opens the GGUF files that mambo writes of every family, and finds the golden logits with them.

Needs the Python package llama-cpp-python, and `cargo build --release` before. The golden weights of every family are
written in f32 and read by llama.cpp with an f32 cache, so the two differ by the order of sums alone. Where llama.cpp
cannot say what a golden model is, the model is changed first, and llama.cpp is compared with mambo on the changed file.
"""

import ctypes
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import llama_cpp
import numpy

from golden import ROOT, tensor

MAMBO = ROOT / "target/release/mambo"
FAMILIES = ROOT / "tests/fixtures/families"
# Largest difference of a logit, which are a few units large; measured up to 1.4e-4.
MOST = 5e-4
# llama.cpp takes Gemma's gates from a table of f16 values; measured up to 4.1e-3.
MOST_BY_TABLE = 2e-2

# llama.cpp takes the scale of Gemma's scores from the size of a head.
GEMMA = {"query_pre_attn_scalar": 16}
# llama.cpp has one bound of gpt-oss's gates, and ends YaRN's ramp at whole channels where gpt-oss does not.
GPT_OSS = {"swiglu_limit": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
           "rope_scaling": None}
CHANGED = {
    "gemma3": GEMMA, "gemma3-hub": GEMMA, "gemma3-nested-hub": GEMMA, "gpt-oss": GPT_OSS, "gpt-oss-hub": GPT_OSS,
    # llama.cpp does not scale the weights of LFM2's experts.
    "lfm2-moe-hub": {"routed_scaling_factor": 1.0},
    # llama.cpp gives the value heads of delta nets the size of key heads.
    "qwen3-next": {"linear_key_head_dim": 12}, "qwen3-next-hub": {"linear_key_head_dim": 16},
    "qwen3-5": {"linear_key_head_dim": 16}, "qwen3-5-hub": {"linear_key_head_dim": 16},
    "qwen3-5-moe-hub": {"linear_key_head_dim": 16},
}
# llama.cpp ignores the windows of these, so that only the tokens within the first window agree.
WINDOWS = {"mistral": 16, "qwen2": 14}
REFUSED = {"qwen3-moe-hub": "llama.cpp knows no dense layers among those with experts"}


def change(folder, changes):
    """Writes a config and cuts those tensors that become smaller by it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    own = config.get("text_config", config)
    own.update(changes)
    path.write_text(json.dumps(config))
    if "linear_key_head_dim" in changes:
        cut(folder / "model.safetensors", own)


def cut(path, config):
    """Takes the first rows of the tensors that hold keys; the weights are random, so any will do."""
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    rows = {"in_proj_qkvz.weight": keys + 2 * values, "in_proj_qkv.weight": keys + values, "conv1d.weight": keys + values}
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, out, tensors = json.loads(data[8:8 + length]), {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        kept = next((count for part, count in rows.items() if name.endswith(part)), entry["shape"][0])
        end = begin + (end - begin) // entry["shape"][0] * kept
        start = sum(map(len, tensors))
        tensors.append(data[begin:end])
        out[name] = {"dtype": entry["dtype"], "shape": [kept, *entry["shape"][1:]],
                     "data_offsets": [start, start + end - begin]}
    head = json.dumps(out).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(tensors))


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    """The library talks a lot; a refusal is told by what it returns."""


def logits_of_llama_cpp(path, ids):
    """Logits of every token, or nothing if the file is refused. The files have no vocabulary, so the plain functions."""
    model_options = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_options)
    if not model:
        return None
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 256
    options.n_threads = options.n_threads_batch = 2
    options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
    options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, options)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for index, token in enumerate(ids):
        batch.token[index], batch.pos[index], batch.logits[index] = int(token), index, 1
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
    if llama_cpp.llama_decode(context, batch):
        sys.exit(f"llama.cpp cannot compute with {path}")
    count = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    row = ctypes.c_float * count
    rows = [numpy.array(row.from_address(ctypes.addressof(llama_cpp.llama_get_logits_ith(context, index).contents)))
            for index in range(len(ids))]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return numpy.array(rows)


def mambo(*arguments):
    """Runs the program; what it says matters only when it fails."""
    done = subprocess.run([MAMBO, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mambo {' '.join(map(str, arguments))}: {done.stderr}")


def compare(case, folder):
    """One golden model: what went wrong, or nothing."""
    golden, file = FAMILIES / case / "expected.safetensors", folder / "model.gguf"
    ids, want = tensor(golden, "input_ids").ravel(), tensor(golden, "logits")
    source = shutil.copytree(FAMILIES / case, folder / case)
    if case in CHANGED:
        change(source, CHANGED[case])
    mambo("quantize", "-m", source, "-o", file, "--type", "f32", "--force")
    if case in CHANGED:
        mambo("logits", "-m", file, "--ids-file", golden, "-o", folder / "own.safetensors")
        want = tensor(folder / "own.safetensors", "logits")
    got = logits_of_llama_cpp(file, ids)
    if case in REFUSED:
        print(f"{case:20} refused: {REFUSED[case]}", flush=True)
        return "is read by llama.cpp now: compare it" if got is not None else None
    if got is None:
        return "llama.cpp refuses the file"
    tokens = WINDOWS.get(case, len(ids))
    off = numpy.abs(got[:tokens] - want[:tokens]).max()
    judge = "mambo on a changed model" if case in CHANGED else "the golden logits"
    print(f"{case:20} {off:.1e} between llama.cpp and {judge}, {tokens} tokens", flush=True)
    most = MOST_BY_TABLE if case.startswith("gemma") else MOST
    return None if off <= most else f"logits are off by {off}"


def main():
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(quiet, None)
    failed = []
    for case in sorted(path.name for path in FAMILIES.iterdir()):
        with tempfile.TemporaryDirectory() as folder:
            problem = compare(case, pathlib.Path(folder))
            if problem:
                failed.append(f"{case}: {problem}")
    if failed:
        sys.exit("\n".join(failed))


main()
