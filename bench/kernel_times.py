#!/usr/bin/env python3
"""Adds up what bench/kernel_times.c recorded: for every kernel and size of launch how often it ran, how long from its
start, which may be before its inputs are ready, and by how much it moved the end of the work.

    bench/kernel_times.py times.txt [--last LAUNCHES]

Needs Python alone.
"""

import argparse

# Nanoseconds between two launches from which they belong to different steps.
PAUSE = 10_000_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times")
    parser.add_argument("--last", type=int, help="only so many launches at the end, without those that load weights")
    args = parser.parse_args()
    with open(args.times) as file:
        launches = [line.split() for line in file]
    launches = sorted((int(start), int(end), *rest) for start, end, *rest in launches)
    if args.last:
        launches = launches[-args.last :]
    kernels, latest = {}, None
    for start, end, *kernel in launches:
        count, total, added = kernels.get(tuple(kernel), (0, 0, 0))
        if latest is not None and 0 < end - latest < PAUSE:
            added += end - latest
        kernels[tuple(kernel)] = (count + 1, total + end - start, added)
        latest = end if latest is None else max(latest, end)
    everything = sum(added for _, _, added in kernels.values()) or 1
    print(f"{'kernel':28}{'blocks':>8}{'threads':>8}{'shared':>8}{'regs':>6}{'runs':>8}{'us':>10}{'us added':>10}{'share':>8}")
    for (name, *sizes), (count, total, added) in sorted(kernels.items(), key=lambda item: -item[1][2]):
        blocks, threads, shared, registers = sizes
        times = f"{total / count / 1e3:10.2f}{added / count / 1e3:10.2f}{added / everything:8.1%}"
        print(f"{name[:27]:28}{blocks:>8}{threads:>8}{shared:>8}{registers:>6}{count:>8}{times}")


if __name__ == "__main__":
    main()
