#!/usr/bin/env python3
"""Writes docs/quality.md and docs/quality.svg: what every type and setting costs in size and quality.

    cargo build --release
    python3 bench/quality.py

With llama-cpp-python installed (in the Python that runs this), the files of its quantizer are measured beside
ours, on the same text by the same program. Speed is measured by bench/benchmarks.py.
"""

import datetime
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAMBO = ROOT / "target/release/mambo"
MODEL = ROOT / "models/tiny-hybrid"
TEXT = ROOT / "tests/fixtures/text/held-out.txt"
PAGE = ROOT / "docs/quality.md"
PICTURE = ROOT / "docs/quality.svg"
WINDOWS = 16
TYPES = ["bf16", "q8_0", "q6_k", "q5_1", "q5_k", "q5_0", "q4_1", "q4_mix", "iq4_nl", "q4_0", "nvfp4", "iq4_xs", "mxfp4",
         "q3_k", "q2_k"]
FOLDERS = ["f8_e4m3", "nvfp4_mix"]
CACHES = [("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("q8", "f32"), ("q8/f16", "f32"), ("f16/q8", "f32"),
          ("f8", "f32"), ("f32", "bf16"), ("f32", "f16"), ("q8", "f16")]
SHAPES = ["nano-4b", "nano-30b", "super"]
SIZES = ["bf16", "q8_0", "q6_k", "q5_k", "q4_mix", "nvfp4", "mxfp4", "q3_k", "q2_k"]


def mambo(*arguments):
    done = subprocess.run([MAMBO, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"mambo {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout) if "--json" in arguments else None


def measure(model, *flags):
    print(f"measuring {pathlib.Path(model).name} {' '.join(flags)}", file=sys.stderr, flush=True)
    return mambo("eval", "kld", "-m", model, "--base", MODEL, "--text", TEXT, "--windows", WINDOWS, "--json", *flags)


def size(path):
    files = [path] if path.is_file() else path.iterdir()
    return sum(file.stat().st_size for file in files)


def nats(value):
    """Two digits that mean something, however small."""
    return "0" if value == 0 else f"{value:.4f}" if value >= 0.01 else f"{value:.5f}" if value >= 1e-3 else f"{value:.1e}"


def quality_cells(result):
    kld = result["kld"]
    return (f"{result['perplexity']['perplexity']:.4f} | {nats(kld['mean'])} | {nats(kld['median'])} | "
            f"{nats(kld['p99'])} | {100 * result['top1_agreement']:.2f} %")


def type_rows(folder):
    """Rows of the table of types, and points (name, program, bits, mean divergence) for the picture."""
    rows, points = [], []
    source = folder / "f32.gguf"
    mambo("quantize", "-m", MODEL, "-o", source, "--type", "f32")
    beside = importlib.util.find_spec("llama_cpp") is not None
    if beside:
        import llama
    else:
        print("SKIPPED: llama.cpp's columns, because llama-cpp-python is not installed", file=sys.stderr)

    def add(name, program, path, result):
        bits = size(path) * 8 / parameters
        points.append((name, program, bits, result["kld"]["mean"]))
        rows.append(f"| {name} | {program} | {size(path) / 1e6:.1f} MB | {bits:.2f} | {quality_cells(result)} |")

    for kind in TYPES:
        path = folder / f"{kind}.gguf"
        parameters = mambo("quantize", "-m", MODEL, "-o", path, "--type", kind, "--json")["parameters"]
        add(kind, "mambo", path, measure(path))
        path.unlink()
        if beside and kind in llama.TYPES:
            llama.quantize(source, path, kind)
            add(llama.TYPES[kind][0], "llama.cpp", path, measure(path))
            path.unlink()
    calibration = folder / "calibration.txt"
    text = TEXT.read_text(encoding="utf-8")
    # The end of the text, which the measurement does not reach.
    calibration.write_text(text[-60000:], encoding="utf-8")
    for kind in ("q4_mix", "q2_k"):
        path = folder / "calibrated.gguf"
        mambo("quantize", "-m", MODEL, "-o", path, "--type", kind, "--calibrate", calibration, "--force")
        add(f"{kind}, calibrated", "mambo", path, measure(path))
    for kind in FOLDERS:
        path = folder / kind
        mambo("quantize", "-m", MODEL, "-o", path, "--type", kind)
        add(f"{kind} (folder)", "mambo", path, measure(path))
    return rows, points


def cache_rows():
    rows = []
    for kv, state in CACHES:
        result = measure(MODEL, "--kv-type", kv, "--state-type", state)
        memory = mambo("fit", "nano-30b", "--quant", "q4_mix", "--kv-type", kv, "--state-type", state, "--json")
        rows.append(f"| {kv} | {state} | {memory['kv_bytes_per_token'] / 1e3:.2f} KB | "
                    f"{memory['state_bytes_per_sequence'] / 1e6:.1f} MB | {quality_cells(result)} |")
    return rows


def size_rows():
    rows = []
    for kind in SIZES:
        cells = [kind]
        for shape in SHAPES:
            total = mambo("fit", shape, "--quant", kind, "--json")["weight_bytes"]
            values = mambo("inspect", shape, "--json")["parameters"]["trunk"]
            cells.append(f"{total / 1e9:.2f} GB ({total * 8 / values:.2f})")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def commit():
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def picture(points):
    """Mean divergence over bits per weight, both programs, on a logarithmic scale."""
    import math

    width, height, left, right, top, bottom = 720, 420, 70, 20, 50, 50
    plotted = [p for p in points if p[3] > 0 and p[2] < 10]
    lowest = math.floor(math.log10(min(p[3] for p in plotted)))
    highest = math.ceil(math.log10(max(p[3] for p in plotted)))
    x = lambda bits: left + (bits - 2) / 7 * (width - left - right)
    y = lambda nats: height - bottom - (math.log10(nats) - lowest) / (highest - lowest) * (height - top - bottom)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             'font-size="12">\n<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{left}" y="22" font-size="15">Divergence from bf16 over file size, tiny-hybrid (lower left is better)</text>',
             f'<text x="{left}" y="40" fill="#666">mean KL divergence in nats over bits per weight</text>']
    for decade in range(lowest, highest + 1):
        at = y(10.0 ** decade)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">1e{decade}</text>')
    for bits in range(2, 10):
        parts.append(f'<text x="{x(bits):.1f}" y="{height - bottom + 20}" text-anchor="middle">{bits}</text>')
    for name, program, bits, nats in plotted:
        ours = program == "mambo"
        colour = "#2a6fdb" if ours else "#999"
        anchor, shift = ("end", -7) if ours else ("start", 7)
        parts.append(f'<circle cx="{x(bits):.1f}" cy="{y(nats):.1f}" r="4" fill="{colour}"/>'
                     f'<text x="{x(bits) + shift:.1f}" y="{y(nats) + 4:.1f}" fill="{colour}" font-size="10" '
                     f'text-anchor="{anchor}">{name}</text>')
    parts.append(f'<text x="{width - right}" y="22" text-anchor="end"><tspan fill="#2a6fdb">● mambo</tspan>  '
                 '<tspan fill="#999">● llama.cpp</tspan></text>\n</svg>')
    return "\n".join(parts) + "\n"


def page(types, caches, sizes):
    return "\n".join([
        "# Quality",
        "",
        f"Made by `python3 bench/quality.py` on {datetime.date.today().isoformat()} at commit {commit()}. Every number is a measurement; speeds are in [benchmarks.md](benchmarks.md).",
        "",
        "![divergence over bits per weight](quality.svg)",
        "",
        "## Types",
        f"The trained 22M-parameter model in `models/tiny-hybrid`, {WINDOWS} windows of 512 tokens of `tests/fixtures/text/held-out.txt`, compared with its bf16 weights and f32 caches. Divergence is KL in nats per token; top-1 is how often both rank the same token first. Tensors that stay in f32 weigh more in a small model: the same type takes fewer bits per weight in a large one (see Sizes). llama.cpp's rows are files written by its quantizer and evaluated by mambo. A type is that of most weights; head, embedding, attention and Mamba projections get more bits unless `--pure`.",
        "",
        "| type | quantizer | size | file bits/weight | perplexity | mean | median | p99 | top-1 |",
        "|---|---|---|---|---|---|---|---|---|",
        *types,
        "",
        "## Keys, values and states",
        "The same model and text in bf16 with other cache types (`--kv-type K/V`, `--state-type`). Memory is that of Nemotron 3 Nano 30B, per token of context and per sequence. State is the recurrent state at the start of a chunk; the inputs since then are kept in f32.",
        "",
        "| keys/values | state | per token | per sequence | perplexity | mean | median | p99 | top-1 |",
        "|---|---|---|---|---|---|---|---|---|",
        *caches,
        "",
        "## Sizes",
        "Weights of real shapes as `mambo quantize --type` writes them (`mambo fit SHAPE --quant TYPE`), with bits per weight, without MTP heads. Nano's rows of 2688 and 1856 values are not multiples of 256, so K-quants fall back to the nearest type with blocks of 32 there.",
        "",
        f"| type | {' | '.join(SHAPES)} |",
        f"|---|{'---|' * len(SHAPES)}",
        *sizes,
        "",
    ])


def main():
    if not MAMBO.is_file():
        sys.exit("there is no target/release/mambo; run `cargo build --release`")
    with tempfile.TemporaryDirectory() as folder:
        types, points = type_rows(pathlib.Path(folder))
    caches, sizes = cache_rows(), size_rows()
    PICTURE.write_text(picture(points), encoding="utf-8")
    PAGE.write_text(page(types, caches, sizes), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}", file=sys.stderr)


main()
