"""Draws what streams get from each server over how many there are: tokens per second, time to the first token, gaps."""

import math

COLOURS = {"mambo": "#2a6f97", "llama.cpp": "#b5651d", "llama-cpp-python": "#999999"}
WIDTH, HEIGHT, LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT = 900, 330, 60, 60, 210, 200
PANELS = [("tokens per second", lambda row: [row["tokens_per_second"]]),
          ("first token, ms: p50, p99", lambda row: [row["first_token_ms"]["p50"], row["first_token_ms"]["p99"]]),
          ("gap between tokens, ms: p50, p99", lambda row: [row["gap_ms"]["p50"], row["gap_ms"]["p99"]])]
DASHES = ["none", "5 4"]


def decades(values):
    """The powers of ten around some numbers."""
    positive = [value for value in values if value > 0]
    low, high = (round_to(math.log10(end)) for round_to, end in ((math.floor, min(positive)), (math.ceil, max(positive))))
    return low, max(high, low + 1)


def panel(left, title, values_of, servers, counts):
    """One diagram; both axes are logarithmic."""
    low, high = decades([value for rows in servers.values() for row in rows for value in values_of(row)])
    most = math.log2(max(counts)) or 1
    x = lambda count: left + math.log2(count) / most * PANEL_WIDTH
    y = lambda value: TOP + PANEL_HEIGHT * (1 - (math.log10(max(value, 10**low)) - low) / (high - low))
    out = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        out.append(f'<line x1="{left}" x2="{left + PANEL_WIDTH}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" '
                   f'stroke="#ddd"/><text x="{left - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end" fill="#555">'
                   f'{10**power:g}</text>')
    for count in counts:
        out.append(f'<text x="{x(count):.1f}" y="{TOP + PANEL_HEIGHT + 18}" text-anchor="middle" fill="#555">{count}'
                   '</text>')
    for name, rows in servers.items():
        for index, dash in enumerate(DASHES[:len(values_of(rows[0]))]):
            points = " ".join(f"{x(row['streams']):.1f},{y(values_of(row)[index]):.1f}" for row in rows)
            out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2" '
                       f'stroke-dasharray="{dash}"/>')
    return out


def draw(results):
    """The picture of all servers that were loaded with levels of streams."""
    servers = {name: result["levels"] for name, result in results.items() if result.get("levels")}
    counts = sorted({row["streams"] for rows in servers.values() for row in rows})
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    for index, (title, values_of) in enumerate(PANELS):
        out += panel(LEFT + index * (PANEL_WIDTH + 75), title, values_of, servers, counts)
    names = "  ".join(f'<tspan fill="{COLOURS[name]}">● {name}</tspan>' for name in servers)
    out.append(f'<text x="{LEFT}" y="{HEIGHT - 20}" xml:space="preserve">{names}  <tspan fill="#555">over the number of '
               'streams; p99 dashed</tspan></text>')
    return "\n".join([*out, "</svg>"]) + "\n"
