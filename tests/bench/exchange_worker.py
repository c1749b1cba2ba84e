"""One rank of tools/bench exchange: measures, in this order and on the same
links, a raw TCP stream, Gloo's all-reduce and Ballast's steps.

Started by exchange.py through tools/lab. What is measured lies between two
barriers; seconds are the slowest rank's mean. Rank 0 writes the rows.
"""

import argparse
import json
import os
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List

import numpy as np
import torch
from torch import distributed

import ballast
import gpt2

_INTERFACE = os.environ.get("BALLAST_LAB_INTERFACE", "")
_PIECE = 1 << 20
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def tx_bytes() -> int:
    """What this node's interface has sent; 0 without a lab's links."""
    if not _INTERFACE:
        return 0
    with open("/sys/class/net/%s/statistics/tx_bytes" % _INTERFACE,
              encoding="utf-8") as stream:
        return int(stream.read())


def processor_seconds() -> float:
    """Of all daemons of the lab and, summed over ranks, their workers."""
    mine = time.process_time()
    if distributed.get_rank() == 0:
        for node in range(nodes()):
            mine += _daemon_seconds(node)
    return reduced(mine, distributed.ReduceOp.SUM)


def _daemon_seconds(node: int) -> float:
    path = os.path.join(os.environ["BALLAST_LAB_DIR"], "daemon-%d.pid" % node)
    with open(path, encoding="utf-8") as stream:
        pid = int(stream.read())
    with open("/proc/%d/stat" % pid, encoding="utf-8") as stream:
        fields = stream.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def nodes() -> int:
    return distributed.get_world_size() // int(os.environ["LOCAL_WORLD_SIZE"])


def reduced(value: float, operation: Any) -> float:
    tensor = torch.tensor([value], dtype=torch.float64)
    distributed.all_reduce(tensor, operation)
    return tensor.item()


def measure(name: str, once: Callable[[], None],
            repeats: int) -> Dict[str, Any]:
    """A row: per repetition seconds, the bytes of the busiest node's
    interface, processor seconds of all."""
    once()  # connections, pages, caches
    distributed.barrier()
    sent, busy, start = tx_bytes(), processor_seconds(), time.monotonic()
    for _ in range(repeats):
        once()
    seconds = time.monotonic() - start
    sent = tx_bytes() - sent
    busy = processor_seconds() - busy
    return {"name": name,
            "seconds": reduced(seconds, distributed.ReduceOp.MAX) / repeats,
            "tx_bytes": int(reduced(sent, distributed.ReduceOp.MAX)) //
                        repeats,
            "processor_seconds": busy / repeats}


class Stream:
    """A TCP stream from every node to the next, all at once."""

    def __init__(self, size: int):
        self._size = size
        self._leads = int(os.environ["LOCAL_RANK"]) == 0 and nodes() > 1
        listener = socket.create_server((_own_address(), 0))
        everyone: List[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everyone, listener.getsockname())
        if self._leads:
            local = int(os.environ["LOCAL_WORLD_SIZE"])
            following = (distributed.get_rank() + local) % len(everyone)
            self._out = socket.create_connection(everyone[following])
            self._in = listener.accept()[0]
        distributed.barrier()
        listener.close()

    def once(self) -> None:
        if self._leads:
            sender = threading.Thread(target=self._send)
            sender.start()
            self._receive()
            sender.join()
        distributed.barrier()

    def _send(self) -> None:
        piece = memoryview(bytes(_PIECE))
        for start in range(0, self._size, _PIECE):
            self._out.sendall(piece[:min(_PIECE, self._size - start)])

    def _receive(self) -> None:
        piece = bytearray(_PIECE)
        left = self._size
        while left > 0:
            size = self._in.recv_into(piece, min(_PIECE, left))
            if size == 0:
                raise ConnectionError("the stream ended early")
            left -= size


def _own_address() -> str:
    if not _INTERFACE:
        return "127.0.0.1"
    address = os.popen("ip -4 -brief address show dev " + _INTERFACE).read()
    return address.split()[2].partition("/")[0]


def gloo(elements: int, dtype: torch.dtype,
         repeats: int) -> Dict[str, Any]:
    """The all-reduce of a whole model's gradients."""
    gradients = torch.full((elements,), 1e-3, dtype=dtype)
    return measure(
        "gloo_" + {torch.float32: "fp32", torch.float16: "fp16"}[dtype],
        lambda: distributed.all_reduce(gradients), repeats)


def exchange(preset: str, options: argparse.Namespace,
             shapes: Dict[str, gpt2.Shape]) -> Dict[str, Any]:
    """Whole steps: gradients pushed, reduced, AdamW, weights published."""
    random = np.random.default_rng(distributed.get_rank())
    first = distributed.get_rank() == 0
    tensors = {name: np.zeros(shape, np.float32) if not first else
               random.normal(0, 0.02, shape).astype(np.float32)
               for name, shape in shapes.items()}
    with ballast.Session(job="bench-" + preset, tensors=tensors,
                         optimizer={"name": "adamw", "lr": 1e-4},
                         exchange=preset) as session:
        del tensors
        for gradient in session.grads.values():
            gradient[...] = random.normal(0, 1e-3, gradient.shape)
        results = []
        row = measure("exchange/" + preset,
                      lambda: results.append(session.step()), options.steps)
        row["wire_bytes"] = int(reduced(results[-1].wire_bytes_sent,
                                        distributed.ReduceOp.MAX))
        row["payload_bytes"] = int(reduced(results[-1].payload_bytes,
                                           distributed.ReduceOp.MAX))
        row["stage_seconds"] = results[-1].stage_seconds
        row["relative_error"] = results[-1].relative_error
        distributed.barrier()
    return row


def main(argv: List[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(gpt2.SIZES))
    parser.add_argument("--elements", type=int)
    parser.add_argument("--preset", action="append", default=[])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--peer", choices=("gloo", "none"), required=True)
    parser.add_argument("--json", required=True)
    options = parser.parse_args(argv)
    shapes = gpt2.inventory(options.model) if options.model else \
        gpt2.even(options.elements)
    elements = gpt2.count(shapes)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rows = []
    if nodes() > 1:
        size = 2 * elements
        rows.append({**measure("tcp", Stream(size).once, 2), "bytes": size})
    if options.peer == "gloo":
        rows.append(gloo(elements, torch.float32, options.steps))
        rows.append(gloo(elements, torch.float16, options.steps))
    for preset in options.preset:
        rows.append(exchange(preset, options, shapes))
    if distributed.get_rank() == 0:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump({"elements": elements, "nodes": nodes(), "rows": rows},
                      stream)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
