"""`mambo serve` for the tests of this folder."""

import pathlib
import re
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/mambo")


class Server:
    """`mambo serve` on a free port of this machine."""

    def __enter__(self):
        self.sessions = tempfile.TemporaryDirectory()
        command = [PROGRAM, "serve", "--port", "0", "--max-sequences", "4", "--sessions", self.sessions.name]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"http://\S+", line)
            if found:
                # What it says later must not fill the pipe.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                self.address = found[0]
                return self
        sys.exit(f"{PROGRAM} does not start")

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(timeout=30) == 0, "the server does not stop well"
        self.sessions.cleanup()
