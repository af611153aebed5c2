#!/usr/bin/env python3
"""Draws the trace of a step as a picture, a row of the page for every few layers.

    mambo explain -m MODEL --backend cuda --analyze --trace step.json
    bench/timeline.py step.json -o docs/timeline.svg [--rows 6]

Needs Python alone.
"""

import argparse
import json
from html import escape

WIDTH, MARGIN, BAR, GAP = 1200, 20, 34, 46
# One colour for each kind of work, readable without colour vision.
COLOURS = {
    "matmul": "#0072b2",
    "moe_matmul": "#56b4e9",
    "ssm_step": "#d55e00",
    "ssm_scan": "#d55e00",
    "attention": "#009e73",
    "rms_norm": "#cc79a7",
    "choose": "#e69f00",
}
OTHER = "#999999"


def picture(trace, rows):
    events = trace["traceEvents"]
    if not events:
        raise SystemExit("the trace is empty")
    total = max(event["ts"] + event["dur"] for event in events)
    share = total / rows
    scale = (WIDTH - 2 * MARGIN) / share
    shapes = []
    for event in events:
        op = event["args"]["op"]
        begin, end = event["ts"], event["ts"] + event["dur"]
        # A call that goes beyond the end of a row goes on in the next.
        while begin < end:
            row = min(int(begin / share), rows - 1)
            stop = end if row == rows - 1 else min(end, (row + 1) * share)
            x, y = MARGIN + (begin - row * share) * scale, 70 + row * GAP
            width = max((stop - begin) * scale, 0.3)
            title = f"{event['name']}: {op}, {event['dur']:.1f} us"
            shapes.append(
                f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{BAR}" fill="{COLOURS.get(op, OTHER)}">'
                f"<title>{escape(title)}</title></rect>"
            )
            begin = stop
    by_op = {}
    for event in events:
        op = event["args"]["op"] if event["args"]["op"] in COLOURS else "other"
        count, time = by_op.get(op, (0, 0.0))
        by_op[op] = (count + 1, time + event["dur"])
    legend, x = [], MARGIN
    for op, (count, time) in sorted(by_op.items(), key=lambda item: -item[1][1]):
        text = f"{op}: {count} calls, {time:.0f} us"
        legend.append(f'<rect x="{x}" y="42" width="12" height="12" fill="{COLOURS.get(op, OTHER)}"/>')
        legend.append(f'<text x="{x + 16}" y="53">{escape(text)}</text>')
        x += 30 + 7 * len(text)
    about = trace["otherData"]
    title = f"{about['model']}, {about['phase']}, {about['backend']}: {len(events)} calls, {total:.0f} us"
    height = 80 + rows * GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{MARGIN}" y="26" font-size="15">{escape(title)}</text>{"".join(legend)}{"".join(shapes)}</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--rows", type=int, default=6)
    args = parser.parse_args()
    if args.rows < 1:
        raise SystemExit("--rows is at least 1")
    with open(args.trace) as file:
        trace = json.load(file)
    with open(args.output, "w") as file:
        file.write(picture(trace, args.rows))


if __name__ == "__main__":
    main()
