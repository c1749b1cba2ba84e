"""tools/bench reattach: how long a worker that is killed is missed once the
next one is there, against a plain reload of a checkpoint of the same state in
the same run.

    tools/bench reattach [--lives L] [--workers W] [--model M | --elements N]
        [--json FILE]

One node, AdamW. Rank 1 is a process that is killed in a step that all other
ranks have given, and replaced by one that has imported everything. From its first look for the daemon: `reattach/open` to the moment
when its session is open, `reattach/accepted` when the daemon has taken its
first bucket, `reattach/step` when the step that was open is committed and its
weights are published (the gradients are there: what they cost is not of this).
`torch_load` reads master and two moments in fp32 from a file that torch.save
wrote, from the page cache: what a restart without held state does first.
ratio_to_peer is torch_load's seconds through the row's own.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(_HERE)),
                                "client", "python"))

# pylint: disable=wrong-import-position
import ballast
import gpt2
import on_lab
from ballast import _library, launch
from restart import torch_seconds

_BUCKET_BYTES = 4 << 20
_PATIENCE = 600.0
# A death is noticed at once; the clock runs from the next one's beginning.
_NOTICED = 0.3
_CONFIG = """\
listen: {{workers: "unix://{0}/ballastd.sock", admin: "unix://{0}/admin.sock",
          http: "off", health: "off", peer: "off"}}
"""


def session(shapes: Dict[str, gpt2.Shape], rank: int, workers: int,
            address: str) -> Any:
    return ballast.Session(
        job="bench", tensors={n: (s, "float32") for n, s in shapes.items()},
        rank=rank, world_size=workers, address=address,
        optimizer={"name": "adamw", "lr": 1e-3}, bucket_bytes=_BUCKET_BYTES,
        timeout=_PATIENCE)


def taken(stats: Dict[str, Any], rank: int) -> int:
    """How many buckets of the open step the daemon has from a rank."""
    return int(stats["workers"][rank].get("buckets_pushed", 0))


def life(model: str, elements: int, workers: int, address: str) -> None:
    """Rank 1, until it is killed: says when it may be told to begin, and how
    long what took."""
    shapes = shapes_of(model, elements)
    first = next(iter(shapes))
    # What a worker has done before it looks for the daemon.
    _library.load()
    assert ballast.Session
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    with session(shapes, 1, workers, address) as s:
        opened = time.monotonic()
        s.push(first)
        while taken(s.stats(), 1) == 0:
            if time.monotonic() > opened + _PATIENCE:
                raise on_lab.LabFailed("no bucket is accepted")
        accepted = time.monotonic()
        s.step()
        print(opened - start, accepted - start, time.monotonic() - start,
              flush=True)
        sys.stdin.readline()  # it is killed here


def shapes_of(model: str, elements: int) -> Dict[str, gpt2.Shape]:
    """With a tensor of one bucket first."""
    shapes = gpt2.even(elements) if elements else gpt2.inventory(model)
    return {"first": (_BUCKET_BYTES // 4,), **shapes}


class Lives:
    """The lives of rank 1, the next one always ready."""

    def __init__(self, arguments: List[str]):
        self._arguments = arguments
        self._next = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            ["/usr/bin/python3", "-B", os.path.abspath(__file__), "--life",
             *self._arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True)
        self._expect(process, "ready")
        return process

    @staticmethod
    def _expect(process: "subprocess.Popen[str]", word: str) -> None:
        line = process.stdout.readline()  # type: ignore[union-attr]
        if line.strip() != word:
            raise on_lab.LabFailed("rank 1 said %r, not %r" % (line, word))

    def run(self) -> List[float]:
        """One life, to its death: its seconds."""
        process = self._next
        process.stdin.write("go\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        line = process.stdout.readline()  # type: ignore[union-attr]
        seconds = [float(word) for word in line.split()]
        if len(seconds) != 3:
            raise on_lab.LabFailed("rank 1 died early")
        self._next = self._start()
        self._end(process)
        time.sleep(_NOTICED)
        return seconds

    @staticmethod
    def _end(process: "subprocess.Popen[str]") -> None:
        process.kill()
        process.wait()
        process.stdin.close()  # type: ignore[union-attr]
        process.stdout.close()  # type: ignore[union-attr]

    def close(self) -> None:
        self._end(self._next)


def survive(shapes: Dict[str, gpt2.Shape], rank: int, workers: int,
            address: str) -> None:
    """All other ranks only step, until the daemon ends."""
    import numpy as np  # pylint: disable=import-outside-toplevel
    tensors = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
    s = ballast.Session(
        job="bench", tensors=tensors, rank=rank, world_size=workers,
        address=address, optimizer={"name": "adamw", "lr": 1e-3},
        bucket_bytes=_BUCKET_BYTES, timeout=_PATIENCE)
    try:
        while True:
            s.step()
    except ballast.Error:
        pass


def measure(folder: str, options: Any, model: str) -> List[on_lab.Row]:
    shapes = shapes_of(model, options.elements)
    config = os.path.join(folder, "daemon.yaml")
    with open(config, "w", encoding="utf-8") as stream:
        stream.write(_CONFIG.format(folder))
    address = "unix://%s/ballastd.sock" % folder
    launcher = launch.Launcher(folder)
    lives = Lives([model, str(options.elements), str(options.workers),
                   address])
    seconds = []
    try:
        daemon = launcher.start_daemon(0, [os.environ["BALLASTD"], "--config",
                                           config])
        if not launch.wait_for_daemon(address, _PATIENCE, daemon):
            raise on_lab.LabFailed("the daemon did not start")
        for rank in range(options.workers):
            if rank != 1:
                threading.Thread(target=survive, daemon=True, args=(
                    shapes, rank, options.workers, address)).start()
        lives.run()  # the first one begins the job: it takes nothing over
        for _ in range(options.lives):
            seconds.append(lives.run())
    finally:
        lives.close()
        launcher.stop()
    elements = gpt2.count(shapes)
    torch_load = min(torch_seconds(folder, elements) for _ in range(3))
    rows = []
    for name, column in zip(("open", "accepted", "step"), zip(*seconds)):
        rows.append({"name": "reattach/" + name,
                     "seconds": statistics.median(column)})
    rows.append({"name": "reattach/accepted_max",
                 "seconds": max(s[1] for s in seconds)})
    for row in rows:
        row["ratio_to_peer"] = torch_load / row["seconds"]
    return rows + [{"name": "torch_load", "seconds": torch_load}]


def main(argv: List[str]) -> int:
    if argv[:1] == ["--life"]:
        life(argv[1], int(argv[2]), int(argv[3]), argv[4])
        return 0
    parser = on_lab.parser("reattach", __doc__, nodes=1, workers=2,
                           model="gpt2")
    parser.add_argument("--lives", type=int, default=7)
    options = parser.parse_args(argv)
    if options.workers < 2:
        parser.error("--workers: rank 1 is the one that dies; at least 2")
    model = options.model or options.default_model
    folder = tempfile.mkdtemp(prefix="ballast-bench-", dir="/tmp")
    try:
        rows = measure(folder, options, model)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("%d workers, %d elements" % (options.workers, gpt2.count(
        shapes_of(model, options.elements))))
    for row in rows:
        print("%-22s %9.3f s  %s" % (
            row["name"], row["seconds"],
            on_lab.shown(row, "ratio_to_peer", "%.2fx torch.load")))
    on_lab.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(on_lab.main("reattach", lambda: main(sys.argv[1:])))
