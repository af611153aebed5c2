#!/usr/bin/env python3
"""Kills the server at random moments under load: no damaged file is accepted, none is half-written under a final name.

    python3 tests/durability.py [--kills 50]

Every start after a kill reads all sessions again (each must load) and restores prompts from the disk cache (answers must
not change). As root, one more server gets a file system that is full: saving fails with a message, answers go on.
"""
import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

PROGRAM = os.path.join(os.path.dirname(__file__), "..", "target", "release", "mambo")


def start(folder, *more):
    """A server whose prefix cache is so small that the disk is always written; its process and address."""
    command = [PROGRAM, "serve", "--port", "0", "--context", "4096", "--prefix-cache", "6M",
               "--sessions", f"{folder}/sessions", "--disk-cache", f"{folder}/cache", "--disk-cache-size", "40M", *more]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    said = []
    for line in server.stderr:
        said.append(line)
        found = re.search(r"http://[0-9.]+:\d+", line)
        if found:
            threading.Thread(target=lambda: said.extend(server.stderr), daemon=True).start()
            return server, found.group(0), said
    sys.exit(f"the server does not start: {''.join(said)}")


def call(address, path, body=None, method=None):
    """Status and answer of a request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def rules(seed):
    return " ".join(f"Rule {n}: {n * seed} is a lucky number." for n in range(60))


def ask(address, seed):
    """The most likely answer under a long system prompt, and the tokens that were restored."""
    messages = [{"role": "system", "content": rules(seed)}, {"role": "user", "content": "What is 2 + 3?"}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 12, "reasoning_effort": "none"}
    status, answer = call(address, "/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def load(address, stop):
    """Asks and saves until the server is gone."""
    pick = random.Random()
    while not stop.is_set():
        seed = pick.randrange(2, 14)
        try:
            if pick.random() < 0.5:
                ask(address, seed)
                continue
            messages = [{"role": "system", "content": rules(seed)}]
            call(address, "/sessions", {"name": f"s{seed}", "messages": messages})
        except (OSError, ValueError):
            return


def check(address, said, want):
    """Everything on disk is whole: sessions load, and answers are those of a server without a disk."""
    refused = [line for line in said if "passed over" in line or "not restored" in line]
    assert not refused, refused
    status, listed = call(address, "/sessions")
    assert status == 200, listed
    for session in listed["sessions"]:
        status, answer = call(address, f"/sessions/{session['name']}/load", {})
        assert status == 200, (session, answer)
    restored = 0
    for seed in random.sample(range(2, 14), 3):
        text, cached = ask(address, seed)
        assert text == want[seed], (seed, text, want[seed])
        restored += cached
    return len(listed["sessions"]), restored


def kills(count):
    with tempfile.TemporaryDirectory() as folder:
        plain, address, _ = start(f"{folder}/plain")
        want = {seed: ask(address, seed)[0] for seed in range(2, 14)}
        plain.kill()
        plain.wait()
        sessions = restored = 0
        for number in range(count):
            server, address, said = start(folder)
            found = check(address, said, want)
            sessions, restored = max(sessions, found[0]), restored + found[1]
            stop = threading.Event()
            threads = [threading.Thread(target=load, args=(address, stop)) for _ in range(3)]
            [thread.start() for thread in threads]
            time.sleep(random.uniform(0, 2))
            server.send_signal(signal.SIGKILL)
            server.wait()
            stop.set()
            [thread.join() for thread in threads]
            for kind in ("sessions", "cache"):
                names = os.listdir(f"{folder}/{kind}")
                assert all(name.endswith((".snapshot", ".partial")) for name in names), names
        server, address, said = start(folder)
        check(address, said, want)
        server.terminate()
        assert server.wait(60) == 0
        assert restored > 0 and sessions > 0, "nothing was ever on disk"
        print(f"killed {count} times: every file whole; up to {sessions} sessions, {restored} tokens restored")


def full_disk():
    if os.geteuid() != 0:
        return print("SKIPPED a full disk: only root can mount one")
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], stderr=subprocess.PIPE)
        if mounted.returncode != 0:
            return print(f"SKIPPED a full disk: {mounted.stderr.decode().strip()}")
        try:
            server, address, said = start(folder)
            messages = [{"role": "system", "content": rules(3)}]
            status, answer = call(address, "/sessions", {"name": "large", "messages": messages})
            assert status == 507 and "large.snapshot" in answer["error"]["message"], (status, answer)
            text, _ = ask(address, 3)
            assert text, "answers go on"
            assert call(address, "/sessions")[1]["sessions"] == []
            server.terminate()
            assert server.wait(60) == 0
            left = os.listdir(f"{folder}/sessions") + os.listdir(f"{folder}/cache")
            assert left == [], left
            print("a full disk: saving is refused with a message, answers go on, nothing is left")
        finally:
            subprocess.run(["umount", folder])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    kills(parser.parse_args().kills)
    full_disk()
