"""The programs that are timed: how each is called, what one turn of it gives, and which build of it that was.

A turn is one fresh process. Its rates have names: `prefill 512` is a prompt of 512 tokens, `decode x8` is eight
sequences decoded together; all are tokens per second.
"""

import hashlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT_IN = "built-in"
# Where other processes take more than this share of the cores' time, a row should be measured again.
BUSY = 0.05


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(command, timeout):
    """Standard output and standard error of a program that must succeed."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        sys.exit(f"`{' '.join(map(str, command))}` failed with status {done.returncode}: {lines[-1]}")
    return done.stdout, done.stderr


class Mambo:
    """`mambo bench`."""

    def __init__(self, path, threads):
        self.path, self.threads = path, threads

    def command(self, model, prompts, tokens, batches, repeats):
        chosen = [] if str(model) == BUILT_IN else ["-m", model]
        return [self.path, "bench", *chosen, "-p", commas(prompts), "-n", tokens, "-b", commas(batches),
                "-r", repeats, "-t", self.threads, "--json"]

    def turn(self, timeout, *shape):
        found = json.loads(run(self.command(*shape), timeout)[0])
        return {rate_name(row["phase"], row["tokens"], row["batch"]): row["tokens_per_second"]["median"]
                for row in found["results"]}


class LlamaBench:
    """llama.cpp's own `llama-bench`, with its defaults but for threads."""

    def __init__(self, path, threads):
        self.path, self.threads = path, threads

    def command(self, model, prompts, tokens, batches, repeats):
        if list(batches) != [1]:
            sys.exit("llama-bench decodes one sequence only; give -b 1")
        if str(model) == BUILT_IN:
            sys.exit("llama-bench has no built-in model; `mambo quantize --type q8_0 -o FILE` writes mambo's")
        return [self.path, "-m", model, "-p", commas(prompts), "-n", tokens, "-r", repeats, "-t", self.threads,
                "-o", "json"]

    def turn(self, timeout, *shape):
        found = json.loads(run(self.command(*shape), timeout)[0])
        return {rate_name("prefill" if row["n_prompt"] else "decode", row["n_prompt"], 1):
                statistics.median(row["samples_ts"]) for row in found}

    def buffers(self, model, timeout):
        """Bytes of weights by the kind of memory llama.cpp put them in: `AMX` and `CPU_REPACK` have kernels of
        their own."""
        log = run([self.path, "-m", model, "-p", 1, "-n", 0, "-r", 1, "-t", self.threads, "--no-warmup", "-v"],
                  timeout)[1]
        return {kind: float(size) * 2**20
                for kind, size in re.findall(r"(\S+) model buffer size\s*=\s*([\d.]+) MiB", log)}

    def build(self):
        """Version, compiler and flags, as the program and the folder it was built in tell them."""
        words = " ".join(run([self.path, "--version"], 60))
        version = re.search(r"version:\s*(.+)", words)
        compiler = re.search(r"built with (.+?)(?: for .*)?$", words, re.MULTILINE)
        cache = next((folder / "CMakeCache.txt" for folder in list(self.path.resolve().parents)[:2]
                      if (folder / "CMakeCache.txt").is_file()), None)
        return {"version": version[1].strip().replace("build 0, ", "") if version else "unknown",
                "compiler": compiler[1].strip() if compiler else "unknown",
                "flags": cmake_flags(cache.read_text(encoding="utf-8")) if cache else "unknown flags"}


def cmake_flags(cache):
    def value(key):
        found = re.search(rf"^{key}(?::\w+)?=(.*)$", cache, re.MULTILINE)
        return found[1].strip() if found else ""

    words = [value("CMAKE_BUILD_TYPE"), "-march=native" if value("GGML_NATIVE") == "ON" else "",
             value("CMAKE_CXX_FLAGS"), "OpenMP" if value("GGML_OPENMP") == "ON" else "no OpenMP"]
    return ", ".join(word for word in words if word)


def program(path, threads):
    """A program by its file name: `llama-bench` is llama.cpp's, everything else is mambo."""
    path = pathlib.Path(path).absolute()
    if not path.is_file():
        sys.exit(f"there is no program {path}; build it, or give another path")
    return (LlamaBench if path.name.startswith("llama-bench") else Mambo)(path, threads)


def commas(numbers):
    return ",".join(map(str, numbers))


def rate_name(phase, tokens, batch):
    return f"prefill {tokens}" if phase == "prefill" else f"decode x{batch}"


def take_turns(programs, shape, turns, timeout, deadline=None, idle=False):
    """The rates of every turn, and the share of the cores' time that other processes took meanwhile.

    Programs take turns and swap places after each, so that a machine that slows down or is shared slows all of
    them. `idle` takes disturbed turns again, up to three times as many. Stops at the deadline; fewer than three
    turns are none."""
    taken, loads = [], []
    for attempt in range(turns * (3 if idle else 1)):
        begin = time.monotonic()
        order = list(programs.items())[::-1 if attempt % 2 else 1]
        with OtherLoad() as other:
            rates = {name: one.turn(timeout, *shape) for name, one in order}
        disturbed = idle and other.share > BUSY
        say(f"turn {len(taken) + 1} of {turns}: " + "; ".join(
            f"{name} " + ", ".join(f"{key} {value:.1f}" for key, value in rates[name].items())
            for name in programs) + f" (others {other.share:.0%}{', taken again' if disturbed else ''})")
        if not disturbed:
            taken.append(rates)
            loads.append(other.share)
        if len(taken) == turns or deadline and 2 * time.monotonic() - begin > deadline:
            break
    share = statistics.mean(loads) if loads else 1.0
    if share > BUSY:
        say(f"other processes took {share:.0%} of the cores' time: measure again on an idle machine")
    return taken if len(taken) >= 3 else None, share


def summary(taken, over, under):
    """Medians of all turns, and how much faster `over` is than `under`."""
    found = {}
    for key in taken[0][over]:
        both = {name: [turn[name][key] for turn in taken] for name in (over, under)}
        pairs = [a / b for a, b in zip(both[over], both[under])]
        found[key] = {
            **{name: {"median": statistics.median(values), "all": values} for name, values in both.items()},
            "ratio": statistics.median(both[over]) / statistics.median(both[under]),
            "ratio_of_turns": {"median": statistics.median(pairs), "min": min(pairs), "max": max(pairs)},
        }
    return found


class OtherLoad:
    """The share of the cores' time that other processes, or other machines on the host, took meanwhile."""

    def __enter__(self):
        self.begin, self.share = self.read(), 0.0
        return self

    def __exit__(self, *_):
        busy, total, own = (now - then for now, then in zip(self.read(), self.begin))
        self.share = max(0.0, busy - own) / total if total else 0.0

    @staticmethod
    def read():
        try:
            line = pathlib.Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
        except OSError:
            return 0.0, 0.0, 0.0
        ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in line.split()[1:9]]
        spent = os.times()
        own = spent.user + spent.system + spent.children_user + spent.children_system
        # Fields 3 and 4 are idle and waiting for a disk.
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks), own


def digest(path):
    """A short name for the bytes of a program."""
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:12]


def commit():
    def git(*words):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    # Scripts, results and pages change while rows are measured; the program does not.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "crates", "models", "Cargo.toml", "Cargo.lock")
    return name + (" with changes" if changed else "")


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cores():
    return len(os.sched_getaffinity(0))
