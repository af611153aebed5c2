#!/usr/bin/env python3
"""Loads a server with streams and says what they get: tokens per second, time to the first token, gaps between tokens.

    cargo build --release
    python3 bench/serve.py                                      # mambo with the built-in model
    python3 bench/serve.py -m FILE.gguf --llama-server PROGRAM  # beside llama.cpp's server on the same file
    python3 bench/serve.py -m FILE.gguf --llama-python PYTHON   # beside llama-cpp-python's, which has one slot

Every level runs for --seconds: as many clients as it has streams ask one question after the other, some of them leave
in the middle (--leave), and every answer that is whole is compared with the one the question got alone. Answers are
greedy, so that any difference is a mistake.

Then, for mambo and wherever the server can: the gaps of one running stream while a prompt of --prompt tokens is read,
divided by its usual gap, beside those of the same stream while nothing is read (`stall`); what streams get that must write JSON after a schema beside as many that need
not (`schema`); and what HTTP costs 16 streams in processor time, and in tokens per second beside `mambo bench` (`http`), in
turns. Each is the median of --repeats. --picture FILE.svg draws the levels.
"""

import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import threading
import time

import programs
import serve_picture
from programs import ROOT, say
from streams import Answer, run

QUESTIONS = [f"What is {a} + {b}?" for a, b in ((17, 25), (3, 4), (12, 9), (40, 2))] + [
    "Hello!", "Tell me a story about a fox.", "What is the capital of France?", "Count from one to ten."]
SCHEMA = {"type": "array", "minItems": 40, "items": {
    "type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"},
                   "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}}}}
PATH = "/v1/chat/completions"
SENTENCE = "The fox ran over the hill and met a bear. "
# Streams beside each other in the measurements of schemas and of HTTP.
BESIDE = 16
# Gaps before and after a prompt that tell what is usual.
NEAR = 200
# Seconds between two looks of a client that only counts.
PAUSE = 0.02


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", help="a .gguf file (the built-in model)")
    parser.add_argument("--mambo", default=ROOT / "target/release/mambo")
    parser.add_argument("--llama-server", metavar="PROGRAM", help="llama.cpp's server")
    parser.add_argument("--llama-python", metavar="PYTHON", help="a Python that has llama-cpp-python[server]")
    parser.add_argument("--only", default="levels,stall,schema,http", help="what is measured (all)")
    parser.add_argument("--streams", default="1,4,16,64", help="levels (1,4,16,64)")
    parser.add_argument("--seconds", type=float, default=10, help="time of one level (10)")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer (64)")
    parser.add_argument("--leave", type=float, default=0.1, help="share of streams whose client leaves (0.1)")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the prompt that may stall others (4096)")
    parser.add_argument("--before", type=float, default=0.2, help="seconds of the stream before that prompt (0.2)")
    parser.add_argument("--repeats", type=int, default=5, help="of the measurements after the levels (5)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", metavar="FILE", help="where the levels are drawn")
    parser.add_argument("--busy", type=float, metavar="SHARE", help=argparse.SUPPRESS)
    return parser.parse_args()


class Server:
    """A program that listens on a port of this machine."""

    def __init__(self, command, name):
        self.command, self.name, self.begun = [str(part) for part in command], name, time.time()

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"(?:http://|listening on )\S*?:(\d+)", line)
            if found:
                self.port = int(found[1])
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return self
        sys.exit(f"`{' '.join(self.command)}` does not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=30)

    def memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) * 1024

    def ask(self, question, tokens, leave_after=None, **more):
        """Begins an answer."""
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0,
                "stream": True, "max_tokens": tokens,
                "stream_options": {"include_usage": True, "token_times": True},
                "chat_template_kwargs": {"enable_thinking": False}, **more}
        return Answer(self.port, PATH, body, leave_after)

    def answers(self, *asked, pause=0):
        """Reads answers to their ends."""
        run(asked, lambda _: None, pause)
        return [answer.finish() for answer in asked]


def level(server, streams, args, alone):
    """So many clients, each asking one question after the other."""
    found, problems, tokens = [], [], 0
    choosers = [random.Random(number) for number in range(streams)]
    end = time.perf_counter() + args.seconds

    def ask(number):
        chooser = choosers[number]
        question, leaves = chooser.choice(QUESTIONS), chooser.random() < args.leave
        answer = server.ask(question, args.tokens, chooser.randrange(1, 12) if leaves else None)
        answer.question, answer.client = question, number
        return answer

    begin = time.perf_counter()
    over = run([ask(number) for number in range(streams)],
               lambda answer: ask(answer.client) if time.perf_counter() < end else None)
    seconds = time.perf_counter() - begin
    for answer in over:
        try:
            answer.finish()
            found.append(answer)
            tokens += answer.tokens if answer.whole else len(answer.moments)
            if answer.whole and answer.text != alone[answer.question]:
                problems.append(f"{answer.question!r} got {answer.text!r}, alone {alone[answer.question]!r}")
        except Exception as error:  # Whatever goes wrong with one client is told, and the others go on.
            problems.append(f"{answer.question!r}: {error}")
    gaps = sorted(gap for answer in found for gap in gaps_of(answer))
    firsts = sorted(answer.moments[0] for answer in found if answer.moments)
    at = lambda values, share: values[min(len(values) - 1, int(share * len(values)))] * 1e3 if values else 0.0
    return {"streams": streams, "answers": len(found), "tokens_per_second": tokens / seconds,
            "first_token_ms": {"p50": at(firsts, 0.5), "p99": at(firsts, 0.99)},
            "gap_ms": {"p50": at(gaps, 0.5), "p99": at(gaps, 0.99)}, "memory_bytes": server.memory(),
            "problems": problems}


def gaps_of(answer):
    return [b - a for a, b in zip(answer.moments, answer.moments[1:])]


def levels(server, args):
    alone = {question: server.answers(server.ask(question, args.tokens))[0].text for question in QUESTIONS}
    rows = []
    for streams in map(int, args.streams.split(",")):
        row = level(server, streams, args, alone)
        rows.append(row)
        say(f"{server.name} x{streams}: {row['tokens_per_second']:.0f} tokens/s "
            f"({row['tokens_per_second'] / rows[0]['tokens_per_second']:.2f} times x{rows[0]['streams']}), first token "
            f"{row['first_token_ms']['p50']:.0f} ms (p99 {row['first_token_ms']['p99']:.0f}), gap "
            f"{row['gap_ms']['p50']:.1f} ms (p99 {row['gap_ms']['p99']:.1f}), "
            f"{row['memory_bytes'] / 2**20:.0f} MiB, {len(row['problems'])} problems")
        [say(f"  {problem}") for problem in row["problems"][:3]]
    return rows


def endless(args):
    """What keeps an answer from ending before its last token: the tokens that end one are banned."""
    model = [args.model] if args.model else []
    shown = json.loads(programs.run([args.mambo, "inspect", *model, "--json"], 60)[0])
    return {"logit_bias": {str(token): -100 for token in shown["stop_tokens"]}}


def sentences(server, args):
    """How often a sentence fills the long prompt; mambo, which comes first, counts its tokens."""
    if not hasattr(args, "sentences"):
        few, many = server.answers(*(server.ask(SENTENCE * count, 1) for count in (20, 120)))
        args.sentences = round(args.prompt / ((many.prompt_tokens - few.prompt_tokens) / 100))
    return args.sentences


def tail(gaps):
    """Median, 99th percentile and worst of some gaps, in milliseconds."""
    gaps = sorted(gaps)
    return {"p50_ms": gaps[len(gaps) // 2] * 1e3, "p99_ms": gaps[int(len(gaps) * 0.99)] * 1e3, "worst_ms": gaps[-1] * 1e3}


def stall_once(server, args, more, prompt):
    """A stream that runs while a prompt is read: its gaps before, beside and after. One loop reads both answers: another
    process would take milliseconds from the server's cores just for starting and ending."""
    running = server.ask("Tell me a story about a fox.", args.prompt * 3 // 2, **more)
    over = run([running], lambda _: None, later=(running.begin + args.before, lambda: server.ask(prompt, 1)))
    asked = [answer.finish() for answer in over if running.finish() is not answer]
    if not asked:
        say("  the stream ended before the prompt was sent")
        return None
    # A token without text, as random weights choose, has no moment: its answer ends with it.
    first = asked[0].moments[0] if asked[0].moments else asked[0].received[-1][0]
    begin = asked[0].begin - running.begin
    end = begin + first
    found = {"prompt_s": end - begin}
    for where, moments in (("client", running.moments), ("engine", running.token_moments)):
        if not moments:
            continue
        gaps = [(b - a, a) for a, b in zip(moments, moments[1:])]
        before = [gap for gap, at in gaps if at < begin]
        beside = [gap for gap, at in gaps if begin <= at < end]
        after = [gap for gap, at in gaps if at >= end]
        if not (before and beside and after):
            say(f"  the stream and the prompt did not overlap; the prompt took {end - begin:.1f} s")
            return None
        # A stream's gaps grow with its length: what is usual lies between those just before and just after.
        usual = statistics.mean((statistics.median(before[-NEAR:]), statistics.median(after[:NEAR]))) * 1e3
        # The same stream on the same machine with nothing beside it: what the system alone does to its gaps.
        alone = tail((before + after)[-len(beside):] if len(beside) < len(before + after) else before + after)
        ratios = lambda gaps: {name[:-3]: value / usual for name, value in gaps.items()}
        beside = tail(beside)
        found[where] = {"usual_ms": usual, "beside": beside, "alone": alone, "ratio": ratios(beside),
                        "alone_ratio": ratios(alone)}
    return found


def stall(server, args, more):
    """Gaps of a running stream while a long prompt is read, by its usual gap: the mean of the medians just before and just
    after. Beside them the gaps of the same stream while nothing is read, because a system's scheduler makes worst gaps too. Gaps are
    those between tokens as they leave the engine, where the server tells, and between what the client receives."""
    long = SENTENCE * sentences(server, args)
    # Nothing of a prompt has been read before.
    found = [stall_once(server, args, more, f"{server.begun}, {repeat}: {long}") for repeat in range(args.repeats)]
    if not (found := [one for one in found if one]):
        return None
    results = {"all": found}
    for where in ("engine", "client"):
        if where not in found[0]:
            continue
        middle = lambda kind, name: statistics.median(one[where][kind][name] for one in found)
        result = {kind: {name: middle(kind, name) for name in ("p50", "p99", "worst")} for kind in ("ratio", "alone_ratio")}
        results[where] = result
        say(f"{server.name} stall, gaps of the {where}: while {args.prompt} tokens are read "
            + ", ".join(f"{name} {ratio:.1f}" for name, ratio in result["ratio"].items()) + " times the usual one; alone "
            + ", ".join(f"{name} {ratio:.1f}" for name, ratio in result["alone_ratio"].items()) + " times (medians of "
            f"{len(found)}: usual {statistics.median(one[where]['usual_ms'] for one in found):.2f} ms, prompt read in "
            f"{statistics.median(one['prompt_s'] for one in found):.1f} s)")
        for one in found:
            beside, alone = one[where]["beside"], one[where]["alone"]
            say(f"  usual {one[where]['usual_ms']:.2f} ms; beside the prompt {beside['p50_ms']:.2f}, "
                f"{beside['p99_ms']:.2f}, {beside['worst_ms']:.2f}; alone {alone['p50_ms']:.2f}, "
                f"{alone['p99_ms']:.2f}, {alone['worst_ms']:.2f}; read in {one['prompt_s']:.2f} s")
    return results


def schema(server, args, more):
    """Milliseconds for each token of streams that write JSON after a schema, beside as many that need not."""
    forced = {"response_format": {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA}}}
    found = {"forced": [], "free": [], "none forced": []}
    per_token = lambda answers: statistics.mean((a.moments[-1] - a.moments[0]) / (len(a.moments) - 1) for a in answers)
    for repeat in range(args.repeats):
        ask = lambda kind: server.ask("Tell me about some people.", 128, **(forced if kind else more))
        answers = server.answers(*(ask(number % 2) for number in range(BESIDE)))
        found["forced"].append(per_token(answers[1::2]) * 1e3)
        found["free"].append(per_token(answers[::2]) * 1e3)
        found["none forced"].append(per_token(server.answers(*(ask(0) for _ in range(BESIDE)))) * 1e3)
    medians = {kind: statistics.median(times) for kind, times in found.items()}
    say(f"{server.name} schema: {BESIDE} streams, half of them after a schema: {medians['forced']:.2f} ms a token, "
        f"{medians['free']:.2f} of the others; {medians['none forced']:.2f} without any schema")
    return medians


class CpuTimes:
    """Seconds of processor time that groups of a process's threads have taken."""

    GROUPS = {"engine": "engine", "mambo-": "engine", "http": "http", "text": "text"}

    def __init__(self, pid):
        self.tasks, self.begin = pathlib.Path(f"/proc/{pid}/task"), {}
        self.begin = self.since()

    def since(self):
        found = dict.fromkeys(("engine", "http", "text", "other"), 0.0)
        for task in self.tasks.iterdir():
            name, fields = (task / "stat").read_text(encoding="utf-8").split("(", 1)[1].rsplit(")", 1)
            group = next((group for start, group in self.GROUPS.items() if name.startswith(start)), "other")
            found[group] += sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
        return {group: seconds - self.begin.get(group, 0.0) for group, seconds in found.items()}


def keep_busy(share):
    """What a client takes from the machine, for as long as this process lives: this share of a core, in pieces."""
    while True:
        begin = time.perf_counter()
        while time.perf_counter() - begin < share * PAUSE:
            pass
        time.sleep((1 - share) * PAUSE)


def http(server, args, more):
    """What HTTP, parsing and templates cost while streams run, in two ways: the processor time of the server's threads
    for them as a share of all that the server took, and tokens per second as a share of what `mambo bench` gives while
    a loop takes as much from the machine as the client took here. First tokens and reading the prompts count."""
    found, tokens = [], 1024
    for repeat in range(args.repeats):
        asked = [server.ask(QUESTIONS[4], tokens, **more) for _ in range(BESIDE)]
        # A client that wakes up for every token would take a tenth of a core from the server.
        begin, own, times = time.perf_counter(), time.process_time(), CpuTimes(server.process.pid)
        run(asked, lambda _: None, PAUSE)
        seconds, own, times = time.perf_counter() - begin, time.process_time() - own, times.since()
        served = sum(answer.finish().tokens for answer in asked) / seconds
        shape = [args.model or programs.BUILT_IN, [0], tokens, [BESIDE], 1]
        bench = lambda: max(programs.Mambo(args.mambo, programs.cores()).turn(120, *shape).values())
        with subprocess.Popen([sys.executable, __file__, "--busy", str(own / seconds)]) as client:
            beside_load = bench()
            client.kill()
        everything = sum(times.values())
        found.append({"served": served, "alone": bench(), "beside_load": beside_load, "client_cores": own / seconds,
                      "share": served / beside_load, "http_time": (everything - times["engine"]) / everything,
                      "microseconds_per_token": (everything - times["engine"]) / (served * seconds) * 1e6})
    middle = lambda name: statistics.median(one[name] for one in found)
    say(f"{server.name} http: {BESIDE} streams get {middle('share'):.1%} of what the engine gives beside a load like "
        f"the client's ({middle('client_cores'):.2f} cores); all but the engine takes {middle('http_time'):.1%} of the "
        f"server's processor time, {middle('microseconds_per_token'):.1f} us a token (medians of {len(found)})")
    for one in found:
        say(f"  {one['served']:.0f} of {one['beside_load']:.0f} tokens/s ({one['alone']:.0f} without that load)")
    return {"share": middle("share"), "http_time": middle("http_time"), "all": found}


def measure(server, args):
    results, more = {}, endless(args)
    with server:
        for what in args.only.split(","):
            if what == "levels":
                results[what] = levels(server, args)
            elif what == "stall":
                results[what] = stall(server, args, more)
            elif server.name == "mambo":
                results[what] = {"schema": schema, "http": http}[what](server, args, more)
    return results


def main():
    args = arguments()
    if args.busy is not None:
        return keep_busy(args.busy)
    most = max([BESIDE, *map(int, args.streams.split(","))])
    context = max(2 * args.prompt, 2048)
    chosen = ["-m", args.model] if args.model else []
    servers = [Server([args.mambo, "serve", *chosen, "--port", 0, "--max-sequences", most, "--context", context],
                      "mambo")]
    if (args.llama_server or args.llama_python) and not args.model:
        sys.exit("llama.cpp has no built-in model: give -m FILE (`mambo quantize --type q8_0 -o FILE` writes mambo's)")
    if args.llama_server:
        servers.append(Server([args.llama_server, "-m", args.model, "--port", 18080, "-np", most, "-c", context * most,
                               "--jinja", "-t", programs.cores()], "llama.cpp"))
    if args.llama_python:
        # It has one slot: answers come one after the other, if a new request does not break off the one that runs.
        servers.append(Server([args.llama_python, "-m", "llama_cpp.server", "--model", args.model, "--port", 18081,
                               "--n_ctx", context, "--n_threads", programs.cores(), "--interrupt_requests", "false"],
                              "llama-cpp-python"))
    results = {server.name: measure(server, args) for server in servers}
    if args.picture:
        pathlib.Path(args.picture).write_text(serve_picture.draw(results), encoding="utf-8")
    if args.json:
        print(json.dumps(results))
    if any(row["problems"] for row in results["mambo"].get("levels", [])):
        sys.exit("answers were lost, mixed or wrong")


if __name__ == "__main__":
    main()
