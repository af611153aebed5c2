"""Many streams of answers read by one cheap client: plain sockets and one loop, nothing is parsed while a stream runs.

A client that parses events as they come takes a core from the server it measures. Here bytes and the moments they came
are kept, and become answers afterwards.
"""

import json
import selectors
import socket
import time

RECEIVED = 1 << 16


class Answer:
    """One request and what came back: its pieces of text, the moment of each, how it ended, and when the server's engine
    gave each token if the server says so (`token_moments`)."""

    def __init__(self, port, path, body, leave_after=None):
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n" \
               f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
        self.leave_after, self.received, self.events = leave_after, [], 0
        self.begin = time.perf_counter()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.socket.sendall(head.encode() + data)
        self.socket.setblocking(False)

    def read(self):
        """Takes what has come; says whether the answer is over."""
        try:
            data = self.socket.recv(RECEIVED)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self.received.append((time.perf_counter() - self.begin, data))
            self.events += data.count(b"data: ")
        left = self.leave_after is not None and self.events >= self.leave_after
        if left or not data:
            self.socket.close()
        self.whole = not data
        return left or not data

    def finish(self):
        """Makes `text`, `moments` and `tokens` of what was received, or raises what the server said."""
        everything, ends = b"", []
        for moment, data in self.received:
            everything += data
            ends.append((len(everything), moment))
        self.text, self.moments, self.tokens, self.token_moments = "", [], 0, []
        head = everything.find(b"\r\n\r\n")
        if not everything.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(everything[:20].decode() + everything[head:head + 200].decode(errors="replace"))
        at, ended, arrived = head, False, iter(ends)
        end, moment = next(arrived)
        while (found := everything.find(b"data: ", at)) >= 0 and (at := everything.find(b"\n", found)) >= 0:
            while end < at:
                end, moment = next(arrived)
            line = everything[found + 6:at].strip()
            if line == b"[DONE]":
                ended = True
                continue
            data = json.loads(line)
            if "error" in data:
                raise RuntimeError(data["error"])
            used = data.get("usage") or {}
            self.tokens = used.get("completion_tokens", self.tokens)
            self.prompt_tokens = used.get("prompt_tokens")
            times = data.get("mambo", {}).get("token_times_ms", [])
            self.token_moments = [time / 1e3 for time in times] or self.token_moments
            deltas = [choice.get("delta") or choice for choice in data["choices"]]
            piece = "".join(d.get("content") or d.get("reasoning_content") or d.get("text") or "" for d in deltas)
            if piece:
                self.text += piece
                self.moments.append(moment)
        if self.whole and not ended:
            raise RuntimeError("the stream broke off")
        self.tokens = self.tokens or len(self.moments)
        return self


def run(answers, more, pause=0, later=None):
    """Reads answers to their ends, in order of their ends; `more(answer)` gives another one for each, or nothing.

    With a pause what has come meanwhile is read at once: cheaper where moments do not matter. `later` is a moment and
    what begins one more answer then.
    """
    over = []
    with selectors.DefaultSelector() as selector:
        for answer in answers:
            selector.register(answer.socket, selectors.EVENT_READ, answer)
        while selector.get_map():
            wait = max(0, later[0] - time.perf_counter()) if later else 120
            ready = selector.select(timeout=wait)
            if later and time.perf_counter() >= later[0]:
                answer, later = later[1](), None
                selector.register(answer.socket, selectors.EVENT_READ, answer)
            elif not ready and not later:
                raise RuntimeError("nothing has come for two minutes")
            time.sleep(pause)
            for key, _ in ready:
                answer = key.data
                if not answer.read():
                    continue
                selector.unregister(key.fileobj)
                over.append(answer)
                if another := more(answer):
                    selector.register(another.socket, selectors.EVENT_READ, another)
    return over
