"""The golden text of the trained model: its tokens, its logits, and how far others are from them."""

import json
import pathlib
import struct

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/tiny-hybrid"
GOLDEN = ROOT / "tests/fixtures/quant/tiny-hybrid.safetensors"
TYPES = {"F32": "<f4", "I64": "<i8", "I32": "<i4"}


def tensor(path, name):
    """One tensor of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        begin, end = header[name]["data_offsets"]
        file.seek(start + begin)
        return numpy.frombuffer(file.read(end - begin), TYPES[header[name]["dtype"]]).reshape(header[name]["shape"])


def divergence(base, other):
    """Mean KL divergence in nats between rows of logits."""
    p, q = log_softmax(base), log_softmax(other)
    return (numpy.exp(p) * (p - q)).sum(-1).mean()


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))
