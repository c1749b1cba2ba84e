"""Stored states as operators and other programs see them."""

import json
import os
import struct
import subprocess

import lab

if not lab.missing():
    import numpy as np

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "uint16"}


def read_safetensors(path):
    """The file by plain numpy, from the published description of the format:
    {name: array}, bf16 as uint16."""
    with open(path, "rb") as stream:
        size, = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(size))
        data = stream.read()
    header.pop("__metadata__", None)
    arrays, end = {}, 0
    for name, entry in sorted(header.items(),
                              key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        assert start == end, name
        end = stop
        arrays[name] = np.frombuffer(
            data[start:stop], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    assert end == len(data)
    return arrays


def ctl(*arguments):
    """(exit code, output, errors) of ballastctl checkpoint …"""
    done = subprocess.run(
        [os.environ["BALLASTCTL"], "checkpoint", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        timeout=lab.PATIENCE)
    return done.returncode, done.stdout, done.stderr
