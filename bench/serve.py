#!/usr/bin/env python3
"""Loads a server with streams and says what they get: tokens per second, time to the first token, gaps between tokens.

    cargo build --release
    python3 bench/serve.py                                     # mambo with the built-in model
    python3 bench/serve.py -m FILE.gguf --llama-server PROGRAM  # beside llama.cpp's server on the same file

Every level runs for --seconds: as many clients as it has streams ask one question after the other, some of them leave
in the middle (--leave), and every answer that is whole is compared with the one the question got alone. Answers are
greedy, so that any difference is a mistake.
"""

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time

import programs
from programs import ROOT, say

QUESTIONS = [f"What is {a} + {b}?" for a, b in ((17, 25), (3, 4), (12, 9), (40, 2))] + [
    "Hello!", "Tell me a story about a fox.", "What is the capital of France?", "Count from one to ten."]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", help="a .gguf file (the built-in model)")
    parser.add_argument("--mambo", default=ROOT / "target/release/mambo")
    parser.add_argument("--llama-server", metavar="PROGRAM", help="llama.cpp's server, measured in turns with mambo")
    parser.add_argument("--streams", default="1,4,16,64", help="levels (1,4,16,64)")
    parser.add_argument("--seconds", type=float, default=10, help="time of one level (10)")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer (64)")
    parser.add_argument("--leave", type=float, default=0.1, help="share of streams whose client leaves (0.1)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Server:
    """A program that listens on a port of this machine."""

    def __init__(self, command, name):
        self.command, self.name = [str(part) for part in command], name

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


def ask(port, question, tokens, leaves=False):
    """The text of an answer, the moments its pieces came, and whether it is whole."""
    body = json.dumps({"messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True,
                       "max_tokens": tokens, "stream_options": {"include_usage": True},
                       "chat_template_kwargs": {"enable_thinking": False}})
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read()[:200]}")
    text, moments, count = "", [], 0
    stop_after = random.randrange(1, 12) if leaves else None
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        data = json.loads(line[6:])
        if "error" in data:
            raise RuntimeError(data["error"])
        count = (data.get("usage") or {}).get("completion_tokens", count)
        piece = "".join(c["delta"].get("content") or c["delta"].get("reasoning_content") or "" for c in data["choices"])
        if piece:
            text += piece
            moments.append(time.perf_counter() - begin)
        if stop_after is not None and len(moments) >= stop_after:
            connection.close()
            return text, moments, len(moments), False
    connection.close()
    return text, moments, count, True


def level(server, streams, args, alone):
    found, problems, lock = [], [], threading.Lock()
    end = time.perf_counter() + args.seconds

    def client(number):
        chooser = random.Random(number)
        while time.perf_counter() < end:
            question = chooser.choice(QUESTIONS)
            try:
                text, moments, count, whole = ask(server.port, question, args.tokens, chooser.random() < args.leave)
                with lock:
                    found.append((moments, count))
                    if whole and text != alone[question]:
                        problems.append(f"{question!r} got {text!r}, alone {alone[question]!r}")
            except Exception as error:  # Whatever goes wrong with one client is told, and the others go on.
                with lock:
                    problems.append(f"{question!r}: {error}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(streams)]
    begin = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    seconds = time.perf_counter() - begin
    gaps = sorted(b - a for moments, _ in found for a, b in zip(moments, moments[1:]))
    firsts = sorted(moments[0] for moments, _ in found if moments)
    at = lambda values, share: values[min(len(values) - 1, int(share * len(values)))] * 1e3 if values else 0.0
    return {"streams": streams, "answers": len(found), "tokens_per_second": sum(c for _, c in found) / seconds,
            "first_token_ms": {"p50": at(firsts, 0.5), "p99": at(firsts, 0.99)},
            "gap_ms": {"p50": at(gaps, 0.5), "p99": at(gaps, 0.99)}, "memory_bytes": server.memory(),
            "problems": problems}


def measure(server, args):
    with server:
        alone = {question: ask(server.port, question, args.tokens)[0] for question in QUESTIONS}
        rows = []
        for streams in map(int, args.streams.split(",")):
            row = level(server, streams, args, alone)
            rows.append(row)
            say(f"{server.name} x{streams}: {row['tokens_per_second']:.0f} tokens/s, first token "
                f"{row['first_token_ms']['p50']:.0f} ms (p99 {row['first_token_ms']['p99']:.0f}), gap "
                f"{row['gap_ms']['p50']:.1f} ms (p99 {row['gap_ms']['p99']:.1f}), "
                f"{row['memory_bytes'] / 2**20:.0f} MiB, {len(row['problems'])} problems")
            [say(f"  {problem}") for problem in row["problems"][:3]]
        return rows


def main():
    args = arguments()
    most = max(map(int, args.streams.split(",")))
    chosen = ["-m", args.model] if args.model else []
    servers = [Server([args.mambo, "serve", *chosen, "--port", 0, "--max-sequences", most, "--context", 2048], "mambo")]
    if args.llama_server:
        if not args.model:
            sys.exit("llama.cpp has no built-in model: give -m FILE (`mambo quantize --type q8_0 -o FILE` writes mambo's)")
        servers.append(Server([args.llama_server, "-m", args.model, "--port", 18080, "-np", most, "-c", 2048 * most,
                               "--jinja", "-t", programs.cores()], "llama.cpp"))
    results = {server.name: measure(server, args) for server in servers}
    if args.json:
        print(json.dumps(results))
    if any(row["problems"] for row in results["mambo"]):
        sys.exit("answers were lost, mixed or wrong")


if __name__ == "__main__":
    main()
