"""One rank of the benchmarks that run on a lab; see on_lab.py. Measures, in
the order of the arguments and on the same links:

    tcp                   a stream from every node to the next, all at once
    tcp_all               streams from every node to every other, all at once
    gloo_fp32, gloo_fp16  PyTorch's all-reduce of the model's gradients
    adamw                 PyTorch's AdamW on the whole model, in one rank
    memcpy                all cores at once, read and written bytes per second
    exchange/PRESET       steps: gradients pushed, reduced, weights published
    barrier               Gloo's
    latency/PRESET/T[/B]  steps of T tensors of 64 elements, in buckets of B
                          bytes (without: the daemon's)
    memory/PRESET         what the daemon's memory grows by

What is measured lies between two barriers; seconds are the slowest rank's
mean. Rank 0 writes the rows.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np
import torch
from torch import distributed

import ballast
import gpt2

_INTERFACE = os.environ.get("BALLAST_LAB_INTERFACE", "")
_PIECE = 1 << 20
_COPIED = 256 << 20
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def tx_bytes() -> int:
    """What this node's interface has sent; of a lab's links."""
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


def _of_daemon(node: int, name: str) -> str:
    """A file of its /proc."""
    path = os.path.join(os.environ["BALLAST_LAB_DIR"], "daemon-%d.pid" % node)
    with open(path, encoding="utf-8") as stream:
        pid = int(stream.read())
    with open("/proc/%d/%s" % (pid, name), encoding="utf-8") as stream:
        return stream.read()


def _daemon_seconds(node: int) -> float:
    fields = _of_daemon(node, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def _daemon_bytes(node: int) -> int:
    """Resident, what it shares with its workers too."""
    match = re.search(r"^Rss:\s+(\d+) kB", _of_daemon(node, "smaps_rollup"),
                      re.MULTILINE)
    return 1024 * int(match.group(1)) if match else 0


def _ask_daemon(node: int, *words: str) -> Any:
    admin = os.path.join(os.environ["BALLAST_LAB_DIR"],
                         "admin-%d.sock" % node)
    return json.loads(subprocess.run(
        [os.environ["BALLASTCTL"], "--address", "unix://" + admin, "--json",
         *words], check=True, capture_output=True, text=True).stdout)


def _idle_bytes(node: int) -> int:
    """_daemon_bytes() once the last row's job is gone."""
    for _ in range(100):
        if not _ask_daemon(node, "jobs").get("jobs"):
            break
        time.sleep(0.1)
    return _daemon_bytes(node)


def nodes() -> int:
    return distributed.get_world_size() // int(os.environ["LOCAL_WORLD_SIZE"])


def reduced(value: float, operation: Any) -> float:
    tensor = torch.tensor([value], dtype=torch.float64)
    distributed.all_reduce(tensor, operation)
    return tensor.item()


def measure(name: str, once: Callable[[], None],
            repeats: int) -> Dict[str, Any]:
    """A row: per repetition seconds, processor seconds of all and, with a
    lab's links, tx_bytes of the busiest node's interface."""
    once()  # connections, pages, caches
    distributed.barrier()
    sent = tx_bytes() if _INTERFACE else 0
    busy, start = processor_seconds(), time.monotonic()
    for _ in range(repeats):
        once()
    seconds = time.monotonic() - start
    busy = processor_seconds() - busy
    row = {"name": name,
           "seconds": reduced(seconds, distributed.ReduceOp.MAX) / repeats,
           "processor_seconds": busy / repeats}
    if _INTERFACE:
        row["tx_bytes"] = int(reduced(
            tx_bytes() - sent, distributed.ReduceOp.MAX)) // repeats
    return row


class Streams:
    """TCP streams from every node to each of the `count` next ones, all at
    once; together they carry `size` bytes from a node."""

    def __init__(self, size: int, count: int):
        self._each = size // count
        self._out: List[socket.socket] = []
        self._in: List[socket.socket] = []
        listener = socket.create_server((_own_address(), 0))
        everyone: List[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everyone, listener.getsockname())
        if int(os.environ["LOCAL_RANK"]) == 0 and nodes() > 1:
            local = int(os.environ["LOCAL_WORLD_SIZE"])
            for distance in range(1, count + 1):
                rank = distributed.get_rank() + distance * local
                self._out.append(socket.create_connection(
                    everyone[rank % len(everyone)]))
            self._in = [listener.accept()[0] for _ in range(count)]
        distributed.barrier()
        listener.close()

    def once(self) -> None:
        running = [threading.Thread(target=self._send, args=(to,))
                   for to in self._out]
        running += [threading.Thread(target=self._receive, args=(come,))
                    for come in self._in]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        distributed.barrier()

    def _send(self, to: socket.socket) -> None:
        piece = memoryview(bytes(_PIECE))
        for start in range(0, self._each, _PIECE):
            to.sendall(piece[:min(_PIECE, self._each - start)])

    def _receive(self, come: socket.socket) -> None:
        piece = bytearray(_PIECE)
        left = self._each
        while left > 0:
            size = come.recv_into(piece, min(_PIECE, left))
            if size == 0:
                raise ConnectionError("a stream ended early")
            left -= size


def _own_address() -> str:
    if not _INTERFACE:
        return "127.0.0.1"
    address = os.popen("ip -4 -brief address show dev " + _INTERFACE).read()
    return address.split()[2].partition("/")[0]


def tcp(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    """As many bytes from a node as a model in 16 bits has."""
    count = {"tcp": 1, "tcp_all": nodes() - 1}[name]
    size = 2 * options.total // count * count
    return {**measure(name, Streams(size, count).once, 2), "bytes": size}


def gloo(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    """The all-reduce of a whole model's gradients."""
    dtype = {"gloo_fp32": torch.float32, "gloo_fp16": torch.float16}[name]
    gradients = torch.full((options.total,), 1e-3, dtype=dtype)
    return measure(name, lambda: distributed.all_reduce(gradients),
                   options.steps)


def adamw(options: argparse.Namespace) -> Dict[str, Any]:
    """Rank 0 updates, with all cores."""
    optimizer = None
    if distributed.get_rank() == 0:
        torch.set_num_threads(os.cpu_count() or 1)
        parameters = [torch.zeros(shape, requires_grad=True)
                      for shape in options.shapes.values()]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)

    def once() -> None:
        if optimizer:
            optimizer.step()
        distributed.barrier()

    row = measure("adamw", once, options.steps)
    torch.set_num_threads(1)
    return row


def memcpy(options: argparse.Namespace) -> Dict[str, Any]:
    """Rank 0 copies with a thread per core; seconds are for `bytes` read and
    written."""
    threads = os.cpu_count() or 1
    pairs = [(np.ones(_COPIED, np.uint8), np.zeros(_COPIED, np.uint8))
             for _ in range(threads if distributed.get_rank() == 0 else 0)]

    def once() -> None:
        copies = [threading.Thread(target=np.copyto, args=(to, source))
                  for source, to in pairs]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.join()
        distributed.barrier()

    return {**measure("memcpy", once, 2 * options.steps),
            "bytes": 2 * _COPIED * threads}


def durations(name: str, once: Callable[[], None],
              repeats: int) -> Dict[str, Any]:
    """A row with percentiles, of the slowest rank in each."""
    once()
    distributed.barrier()
    seconds: List[float] = []
    for _ in range(repeats):
        start = time.monotonic()
        once()
        seconds.append(time.monotonic() - start)
    slowest = torch.tensor(sorted(seconds), dtype=torch.float64)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    return {"name": name, "seconds": slowest.mean().item(),
            "p50_seconds": slowest[len(seconds) // 2].item(),
            "p99_seconds": slowest[len(seconds) * 99 // 100].item()}


def latency(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    _, preset, count, *bucket_bytes = name.split("/")
    tensors = {"w%d" % i: np.zeros(64, np.float32) for i in range(int(count))}
    with ballast.Session(job=name.replace("/", "-"), tensors=tensors,
                         optimizer={"name": "sgd", "lr": 0.0},
                         exchange=preset,
                         bucket_bytes=int(bucket_bytes[0])
                         if bucket_bytes else None) as session:
        row = durations(name, session.step, options.repeats)
        distributed.barrier()
    return row


@contextlib.contextmanager
def training(name: str, options: argparse.Namespace) -> Iterator[Any]:
    """A session with AdamW whose gradients are there; closed together."""
    random = np.random.default_rng(distributed.get_rank())
    first = distributed.get_rank() == 0
    tensors = {tensor: np.zeros(shape, np.float32) if not first else
               random.normal(0, 0.02, shape).astype(np.float32)
               for tensor, shape in options.shapes.items()}
    with ballast.Session(job=job_of(name), tensors=tensors,
                         optimizer={"name": "adamw", "lr": 1e-4},
                         exchange=name.partition("/")[2]) as session:
        del tensors
        for gradient in session.grads.values():
            gradient[...] = random.normal(0, 1e-3, gradient.shape)
        yield session
        distributed.barrier()


def job_of(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)[:63]


def memory(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    """Of the node whose daemon has grown the most, in bytes."""
    leads = distributed.get_rank() == 0
    before = [_idle_bytes(node) for node in range(nodes() if leads else 0)]
    row: Dict[str, Any] = {"name": name}
    with training(name, options) as session:
        for _ in range(options.steps):
            session.step()
        distributed.barrier()
        if leads:
            grown = [_daemon_bytes(node) - before[node]
                     for node in range(nodes())]
            most = grown.index(max(grown))
            row["bytes"] = grown[most]
            job = _ask_daemon(most, "job", job_of(name))
            row["admitted_bytes"] = int(job["summary"]["admitted_bytes"])
            row["parts"] = {part: int(size)
                            for part, size in job["memory"].items()}
    return row


def exchange(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    """Whole steps: gradients pushed, reduced, AdamW, weights published."""
    with training(name, options) as session:
        results = []
        row = measure(name, lambda: results.append(session.step()),
                      options.steps)
        last = results[-1]
        for count in ("wire_bytes_sent", "payload_bytes"):
            row[count.replace("_sent", "")] = int(reduced(
                getattr(last, count), distributed.ReduceOp.MAX))
            # Of all ranks and steps: a control message more or less, and a
            # part on its way at a step's end, weigh little.
            row["all_" + count.replace("_sent", "")] = int(reduced(
                sum(getattr(result, count) for result in results),
                distributed.ReduceOp.SUM))
        row["stage_seconds"] = last.stage_seconds
        row["relative_error"] = last.relative_error
        row["routes"] = session.stats().get("routes", "")
    return row


def row_of(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    kind = name.partition("/")[0]
    if kind in ("gloo_fp32", "gloo_fp16"):
        return gloo(name, options)
    if kind in ("exchange", "latency", "memory"):
        return {"exchange": exchange, "latency": latency,
                "memory": memory}[kind](name, options)
    if kind == "barrier":
        return durations(name, distributed.barrier, options.repeats)
    if kind in ("tcp", "tcp_all"):
        return tcp(name, options)
    return {"adamw": adamw, "memcpy": memcpy}[kind](options)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(gpt2.SIZES))
    parser.add_argument("--elements", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--json", required=True)
    parser.add_argument("rows", nargs="+")
    options = parser.parse_args(argv)
    options.shapes = gpt2.inventory(options.model) if options.model else \
        gpt2.even(options.elements)
    options.total = gpt2.count(options.shapes)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rows = [row_of(name, options) for name in options.rows]
    if distributed.get_rank() == 0:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump({"elements": options.total, "rows": rows}, stream)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
