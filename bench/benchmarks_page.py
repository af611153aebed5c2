"""Writes docs/benchmarks.md and its bar charts from the stored results. Called by benchmarks.py."""

import json

BAR, GAP, LEFT, WIDTH = 16, 4, 170, 760
COLOURS = {"mambo": "#2a6fdb", "llama_cpp": "#b8b8b8"}

HEAD = """# Benchmarks

Made by `bench/benchmarks.py`, beside llama-cpp-python on the same files: the two programs take turns, each in a
fresh process with the same threads, and what stands here are medians. Weights are random (`mambo synth`), shapes
and sizes are real. *Floor* is what a plain loop over memory reads with the same threads; a share above 100 % means
that the loop was disturbed more than the model, or that weights stayed in cache.
"""

FLOORS = """
## What bounds a ratio
- **Decode** reads every active weight once per token. Where llama.cpp already reaches most of what memory gives,
  nobody can be much faster; where its kernels are the limit, mambo is ahead by as much as they fall short.
- **Prefill** is 8-bit dot products. Every 32 columns have scales of their own, so each eight dot products bring
  two fma to the same units: 80 % of the peak is the most that such weights allow. A Zen 4 core does one
  512-bit dot product (64 products) per cycle; two cores at 3.6 GHz can therefore prefill nano-4b, 3.16 G products
  per token, at 146 tokens/s if they do nothing else and at 117 with the scales.
  `cargo run --release -p mambo-cpu --example throughput` prints what matrices of each type reach on a machine.
- **Eight sequences** of nano-4b are 28.5 G products, 77 ms on two Zen 4 cores with the scales, and read 0.8 GB of
  states once there are any, after 32 tokens. One sequence reads 2.2 GB, in 34 or 61 ms as memory gives 66 or 36 GB/s:
  eight are at most 3.5 or 6.3 times one at the start, and 3.2 or 5.2 times afterwards. On 16 cores products of eight
  rows read 125 GB/s where those of one read 155, as said above: with them eight can be 6.5 times one at the start, and
  5.2 times once 0.8 GB of states are read at 155 GB/s too.
- **bf16** weights are held in twelve bits without loss, so decode reads three quarters of the file. Activations stay
  f32: rounding them to bf16, as llama.cpp does, moves logits further than the golden files allow. A fma does 16
  products, so two Zen 4 cores can prefill nano-4b at 37 tokens/s at most; llama.cpp's rounded ones may reach 73.
- **Decode at depth** reads 16 KB of keys and values per token of nano-4b's past. By itself attention reads them on 16
  cores as fast as the plain loop (94 to 110 GB/s after 65,536 tokens, some of it from the third cache), on two Zen 4
  cores at 30 GB/s, where arithmetic is the limit (`cargo run --release -p mambo-cpu --example attention 16 65536`, and
  `2 16384`). Between the products of a step it is slower on 16 cores, as said above.
- **Tile registers** (AMX) multiply bf16 weights with activations in two parts. For quantised weights they are not
  used: scales make the sums leave a tile after every product, which costs about what the tile saves.
- **Threads**: a step takes as many as it is worth. tiny-hybrid decodes as fast with `mambo bench -t 6` as with
  `-t 16` on 16 cores: more than six would wait longer for each other than they save.
"""


def rate(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def versus_rows(rows):
    return {name: row for name, row in rows.items() if "prefill" in row and "mambo" in row.get("prefill", {})}


def versus_table(rows):
    lines = ["| tokens/s | prefill | llama.cpp | ratio | decode | llama.cpp | ratio | share of the floor |",
             "|---|---|---|---|---|---|---|---|"]
    for name, row in versus_rows(rows).items():
        cells = [f"{name}, {row['tokens']['prefill']} + {row['tokens']['decode']}"]
        for phase in ("prefill", "decode"):
            one = row[phase]
            cells += [rate(one["mambo"]["median"]), rate(one["llama_cpp"]["median"]), f"**{one['ratio']:.2f}**"]
        lines.append("| " + " | ".join(cells + [f"{row['share_of_bandwidth']:.0%}"]) + " |")
    return "\n".join(lines)


def eight(row):
    return f"{rate(row['8'])} tokens/s, {row['8'] / row['1']:.2f} times one ({rate(row['1'])})"


def own_lines(result):
    rows, lines = result["rows"], [f"- {note}" for note in result.get("notes", [])]
    if row := rows.get("scaling"):
        short, long = row["prefill"]["512"], row["prefill"]["4096"]
        near, far = row["decode_at_depth"]["0"], row["decode_at_depth"]["16384"]
        lines.append(f"- nano-4b q4_0: a token of a 4096-token prompt costs {short / long:.3f} times one of 512 "
                     f"({rate(long)} and {rate(short)} tokens/s), and decoding after 16,384 tokens "
                     f"{near / far:.3f} times decoding at the start ({rate(far)} and {rate(near)} tokens/s).")
    for key, name in (("batch 4b", "nano-4b q4_0"), ("batch 30b", "nano-30b q4_0")):
        if row := rows.get(key):
            later = f"; after 512 tokens {eight(row['after_512'])}" if "after_512" in row else ""
            lines.append(f"- {name}: 8 sequences together decode {eight(row)}{later}.")
    if row := rows.get("load"):
        lines.append(f"- nano-30b q4_0 is ready after {row['load_seconds']:.1f} s (reading its file once takes "
                     f"{row['read_seconds']:.1f} s), peak memory {row['peak_memory_bytes'] / row['file_bytes']:.2f} "
                     "times the file.")
    if row := rows.get("threads"):
        cells = ", ".join(f"{n}: {rate(v['prefill'])} / {rate(v['decode'])}" for n, v in row.items())
        lines.append(f"- nano-4b q4_0 by threads, prefill / decode tokens/s: {cells}.")
    return "\n".join(lines)


def chart(result):
    """Pairs of bars, each pair on a scale of its own: models differ by orders of magnitude."""
    out, y = [], 56
    for phase in ("prefill", "decode"):
        out.append(f'<text x="12" y="{y}" font-weight="bold">{phase}, tokens per second</text>')
        y += 12
        for name, row in versus_rows(result["rows"]).items():
            pair = [(program, row[phase][program]["median"]) for program in COLOURS]
            largest = max(value for _, value in pair)
            out.append(f'<text x="{LEFT - 8}" y="{y + BAR + 4}" text-anchor="end">{name}</text>')
            for program, value in pair:
                width = value / largest * (WIDTH - LEFT - 170)
                label = rate(value) + (f"  ({row[phase]['ratio']:.2f}x)" if program == "mambo" else "  llama.cpp")
                out.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" '
                           f'fill="{COLOURS[program]}"/>'
                           f'<text x="{LEFT + width + 6:.1f}" y="{y + 13}">{label}</text>')
                y += BAR + 1
            y += GAP + 4
        y += 28
    title = f"mambo and llama.cpp, {result['machine']}, {result['threads']} threads"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" '
            f'font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n'
            f'<text x="12" y="26" font-size="16">{title}</text>\n' + "\n".join(out) + "\n</svg>\n")


def commits(result):
    """The commits that the rows were measured at."""
    found = {}
    for row in result["rows"]:
        found.setdefault(result.get("commits", {}).get(row, result["commit"]), []).append(row)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{commit} ({', '.join(rows)})" for commit, rows in found.items())


def write(results, docs):
    page = HEAD
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result.get("rows"), dict):
            continue
        picture = f"benchmarks-{path.stem}.svg"
        page += (f"\n## {result['machine']}, {result['threads']} threads\n"
                 f"{result['date']}, mambo {commits(result)}, {result.get('peer', 'llama-cpp-python 0.3.36')}; "
                 f"`bench/benchmarks.py`, results in `bench/results/{path.name}`.\n\n"
                 f"{versus_table(result['rows'])}\n\n{own_lines(result)}\n\n![bars]({picture})\n")
        (docs / picture).write_text(chart(result), encoding="utf-8")
    (docs / "benchmarks.md").write_text(page + FLOORS, encoding="utf-8")
