#!/usr/bin/env python3
"""Draws the result of llama_compare.py as bars: `python3 bench/chart.py RESULT.json > docs/speed.svg`."""

import json
import sys

BAR, GAP, LEFT, WIDTH = 22, 10, 150, 640


def main():
    result = json.load(open(sys.argv[1], encoding="utf-8"))
    rows = []
    for phase in ("prefill", "decode"):
        for program, colour in (("mambo", "#2a6fdb"), ("llama_cpp", "#b8b8b8")):
            rows.append((phase, program, result[phase][program]["median"], colour))
    height = 60 + sum(BAR + GAP for _ in rows) + 20
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
          'font-size="13">\n<rect width="100%" height="100%" fill="white"/>')
    title = f"{result['model']}, {result['threads']} threads, {result['machine']}: tokens per second"
    print(f'<text x="12" y="24" font-size="15">{title}</text>')
    y = 44
    for index, (phase, program, value, colour) in enumerate(rows):
        # Each phase has its own scale: the two differ by an order of magnitude.
        largest = max(row[2] for row in rows if row[0] == phase)
        width = value / largest * (WIDTH - LEFT - 90)
        name = f"{phase} {result['tokens'][phase]}, {program.replace('_', '.')}"
        print(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{name}</text>'
              f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
              f'<text x="{LEFT + width + 6:.1f}" y="{y + 15}">{value:.1f}</text>')
        y += BAR + GAP + (12 if index % 2 else 0)
    print("</svg>")


main()
