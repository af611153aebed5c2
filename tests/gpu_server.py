#!/usr/bin/env python3
"""The server on a GPU that fails, which crates/cuda/emulator plays: it answers what it can, says 503 for what it cannot,
and stops when it is told to.

    python3 tests/gpu_server.py FOLDER      the folder that crates/cuda/emulator/build filled
"""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

PROGRAM = os.path.join(os.path.dirname(__file__), "..", "target", "release", "mambo")


def start(libraries, settings):
    """A server on the emulated GPU; its process, its address and what it says."""
    environment = {**os.environ, "LD_LIBRARY_PATH": os.path.abspath(libraries), "EMULATED_GPU": settings}
    command = [PROGRAM, "serve", "--backend", "cuda", "--port", "0", "--context", "512"]
    server = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    said = []
    for line in server.stderr:
        said.append(line)
        found = re.search(r"http://[0-9.]+:\d+", line)
        if found:
            threading.Thread(target=lambda: said.extend(server.stderr), daemon=True).start()
            return server, found.group(0), said
    server.wait()
    return None, None, said


def call(address, path, body=None):
    """Status and answer of a request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=200) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ask(address):
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 4,
            "reasoning_effort": "none"}
    return call(address, "/v1/chat/completions", body)


def stop(server):
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) in (0, -signal.SIGTERM), server.returncode


def check(condition, what, said):
    if not condition:
        sys.exit(f"{what}\nthe server said:\n{''.join(said)}")


def lost_while_running(libraries):
    """A launch fails for good: that request and all later ones are 503, and the server is still there."""
    server, address, said = start(libraries, "arch=90 fail=cuGraphLaunch:6:719")
    check(server, "the server does not start", said)
    statuses = []
    for _ in range(6):
        status, text = ask(address)
        statuses.append(status)
        if status != 200:
            check(status == 503, f"status {status} for a lost GPU: {text}", said)
            check("lost" in text, f"the answer does not say what happened: {text}", said)
    check(503 in statuses and statuses[-1] == 503, f"statuses {statuses}: the GPU was not lost", said)
    status, _ = call(address, "/v1/models")
    check(status == 200, f"status {status} for the list of models on a lost GPU", said)
    stop(server)
    return statuses


def out_of_memory_while_running(libraries):
    """Memory runs out once: that request is 503, the next ones are answered."""
    for number in range(2, 40):
        server, address, said = start(libraries, f"arch=90 fail=cuMemHostAlloc:{number}:2")
        if not server:
            continue
        statuses = [ask(address)[0] for _ in range(3)]
        stop(server)
        check(set(statuses) <= {200, 503}, f"statuses {statuses} when memory runs out", said)
        check(statuses[-1] == 200, f"statuses {statuses}: the server does not go on", said)
        if 503 in statuses:
            return statuses
    sys.exit("no request met the lack of memory")


def no_room_at_start(libraries):
    """A model that does not fit is refused before the server listens, with what to do."""
    server, _, said = start(libraries, "arch=90 memory=600000000 used=590000000")
    text = "".join(said)
    check(server is None, "the server started without memory", said)
    check("memory" in text.lower() and "panicked" not in text, f"it does not say what is missing: {text}", said)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    no_room_at_start(sys.argv[1])
    print("no room: refused")
    print("out of memory while running:", out_of_memory_while_running(sys.argv[1]))
    print("lost while running:", lost_while_running(sys.argv[1]))


if __name__ == "__main__":
    main()
