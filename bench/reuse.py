#!/usr/bin/env python3
"""What the prefix cache spares: the second turn of a long conversation, and an agent that calls tools.

    python3 bench/reuse.py [--program target/release/mambo] [--turns 7]

Two servers with the built-in model, one with the cache and one without, are asked the same in turns. Answers must be
equal; tokens read are counted from the usage of every answer.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request

PROGRAM = os.path.join(os.path.dirname(__file__), "..", "target", "release", "mambo")


class Server:
    def __init__(self, program, *flags):
        command = [program, "serve", "--port", "0", "--context", "16384", "--max-sequences", "2", "--log-level", "off",
                   *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"http://[0-9.]+:\d+", line)
            if found:
                self.address = found[0]
                return
        sys.exit("the server does not start")

    def ask(self, messages, tools=None, **more):
        """The answer's message, its usage, and the seconds to its first token."""
        body = {"messages": messages, "temperature": 0, "reasoning_effort": "none", "stream": True,
                "stream_options": {"include_usage": True}, **more}
        if tools:
            body["tools"] = tools
        request = urllib.request.Request(self.address + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        begun, first, text, calls, usage = time.perf_counter(), None, "", [], None
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    delta = choice["delta"]
                    if first is None and (delta.get("content") or delta.get("tool_calls")):
                        first = time.perf_counter() - begun
                    text += delta.get("content") or ""
                    calls += delta.get("tool_calls") or []
        message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [{"id": call["id"], "type": "function", "function": call["function"]} for call in calls]
        return message, usage, first or time.perf_counter() - begun


def filler(words, seed):
    return " ".join(f"Note {n}: item {n * seed % 97} is in box {n * 7 % 31}." for n in range(words))


def second_turn(cached, plain, turns):
    """First token of the second turn of a conversation of about 4,000 tokens."""
    times = {True: [], False: []}
    for seed in range(1, turns + 1):
        history = [{"role": "system", "content": filler(260, seed)}, {"role": "user", "content": "What is 2 + 3?"}]
        said, usage, _ = cached.ask(history, max_tokens=16)
        history += [said, {"role": "user", "content": "And 17 + 25?"}]
        answers = []
        for server, kind in ((cached, True), (plain, False)):
            message, usage, first = server.ask(history, max_tokens=16)
            times[kind].append(first)
            answers.append(message["content"])
        assert answers[0] == answers[1], answers
    with_cache, without = (statistics.median(times[kind]) for kind in (True, False))
    print(f"second turn of {usage['prompt_tokens']} tokens: first token after {with_cache * 1e3:.1f} ms, without the "
          f"cache {without * 1e3:.0f} ms: {without / with_cache:.1f} times sooner (medians of {turns})")


def agent(cached, plain):
    """Twenty tool calls over a context that grows to 8,000 tokens."""
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Current weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    read = {True: 0, False: 0}
    histories = []
    for server, kind in ((cached, True), (plain, False)):
        history = [{"role": "user", "content": "What is the weather in Paris?"}]
        calls = 0
        for number in range(20):
            message, usage, _ = server.ask(history, [tool], tool_choice="required", max_tokens=64)
            read[kind] += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            assert message.get("tool_calls"), message
            calls += len(message["tool_calls"])
            history.append(message)
            for call in message["tool_calls"]:
                call["id"] = f"call{number}"
                history.append({"role": "tool", "tool_call_id": call["id"], "content": filler(24, number + 2)})
        histories.append(json.dumps(history))
        length = usage["prompt_tokens"]
    assert histories[0] == histories[1], "the cache has changed an answer"
    print(f"agent: {calls} calls, the last prompt has {length} tokens; read {read[True]} prompt tokens in all "
          f"({read[True] / length:.2f} times each), without the cache {read[False]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=PROGRAM)
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    servers = [Server(arguments.program), Server(arguments.program, "--prefix-cache", "off")]
    try:
        second_turn(*servers, arguments.turns)
        agent(*servers)
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait()
