"""tools/bench restart: how long a daemon that is killed is missed, against a
plain reload of a checkpoint of the same state in the same run.

    tools/bench restart [--restarts R] [--workers W] [--model M | --elements N]
        [--json FILE]

One node, AdamW, a keeper. `ready` is from the start of the next ballastd to
the moment when it has taken the job over; `step` to the return of a step that
all workers began before (its pause is that less the median step, `step/usual`).
`torch_load` reads master and two moments in fp32 from a file that torch.save
wrote, from the page cache. ratio_to_peer is torch_load's seconds through the
row's own.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, List

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(_HERE)),
                                "client", "python"))

# pylint: disable=wrong-import-position
import ballast
import gpt2
import on_lab
from ballast import launch

_PATIENCE = 600.0
_CONFIG = """\
listen: {{workers: "unix://{0}/ballastd.sock", admin: "unix://{0}/admin.sock",
          http: "off", health: "off", peer: "off"}}
keeper: {{socket: "{0}/keeper.sock"}}
"""


def torch_seconds(folder: str, elements: int) -> float:
    """torch.load of three fp32 arrays of so many elements."""
    import torch  # pylint: disable=import-outside-toplevel
    path = os.path.join(folder, "torch")
    torch.save({name: torch.rand(elements) for name in ("master", "m", "v")},
               path)
    start = time.monotonic()
    state = torch.load(path, weights_only=True)
    seconds = time.monotonic() - start
    assert len(state) == 3
    os.remove(path)
    return seconds


class Node:
    """A daemon that is killed and started again, and its keeper."""

    def __init__(self, folder: str):
        self.address = "unix://%s/ballastd.sock" % folder
        config = os.path.join(folder, "daemon.yaml")
        with open(config, "w", encoding="utf-8") as stream:
            stream.write(_CONFIG.format(folder))
        self._keeper_socket = os.path.join(folder, "keeper.sock")
        self._launcher = launch.Launcher(folder)
        self._command = [os.environ["BALLASTD"], "--config", config]
        self._daemon: Any = None
        self._keeper = subprocess.Popen(
            [os.environ["BALLAST_KEEPER"], "--socket", self._keeper_socket])

    def start(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not os.path.exists(self._keeper_socket):
            if time.monotonic() > deadline:
                raise on_lab.LabFailed("the keeper did not start")
            time.sleep(0.01)
        self._daemon = self._launcher.start_daemon(0, self._command)
        if not launch.wait_for_daemon(self.address, _PATIENCE, self._daemon):
            raise on_lab.LabFailed("the daemon did not start")

    def kill(self) -> None:
        self._daemon.send_signal(signal.SIGKILL)
        while self._daemon.poll() is None:
            time.sleep(0.001)

    def start_again(self) -> float:
        """Seconds from its start until it has the job."""
        start = time.monotonic()
        self._daemon = self._launcher.start_daemon(0, self._command)
        while True:
            with open(self._daemon.log, encoding="utf-8") as stream:
                log = stream.read()
            if "job taken over" in log:
                return time.monotonic() - start
            if "job not taken over" in log or \
                    time.monotonic() - start > _PATIENCE:
                raise on_lab.LabFailed("the job was not taken over:\n" + log)
            time.sleep(0.001)

    def stop(self) -> None:
        self._launcher.stop()
        self._keeper.terminate()
        self._keeper.wait()


class Training:
    """Ranks that step together, so many times as they are told."""

    def __init__(self, address: str, workers: int, elements: int):
        self._go = threading.Barrier(workers + 1)
        self._done = threading.Barrier(workers + 1)
        self._is_over = False
        self._arguments = (address, workers, elements)
        self._threads = [threading.Thread(target=self._rank, args=(rank,),
                                          daemon=True)
                         for rank in range(workers)]
        for thread in self._threads:
            thread.start()

    def _rank(self, rank: int) -> None:
        import numpy as np  # pylint: disable=import-outside-toplevel
        address, workers, elements = self._arguments
        with ballast.Session(
                job="bench", tensors={"w": np.zeros(elements, np.float32)},
                rank=rank, world_size=workers, address=address,
                optimizer={"name": "adamw", "lr": 1e-3},
                timeout=_PATIENCE) as session:
            session.grads["w"][...] = 0.01 * (rank + 1)
            while True:
                self._go.wait(_PATIENCE)
                if self._is_over:
                    return
                session.step()
                self._done.wait(_PATIENCE)

    def begin(self) -> None:
        self._go.wait(_PATIENCE)

    def end(self) -> None:
        self._done.wait(_PATIENCE)

    def close(self) -> None:
        self._is_over = True
        self._go.wait(_PATIENCE)
        for thread in self._threads:
            thread.join(_PATIENCE)


def measure(folder: str, elements: int, workers: int,
            restarts: int) -> List[on_lab.Row]:
    node = Node(folder)
    usual, ready, steps = [], [], []
    try:
        node.start()
        training = Training(node.address, workers, elements)
        for index in range(restarts + 1):
            for _ in range(3):
                start = time.monotonic()
                training.begin()
                training.end()
                if index > 0:
                    usual.append(time.monotonic() - start)
            if index == restarts:
                break
            node.kill()
            training.begin()
            start = time.monotonic()
            ready.append(node.start_again())
            training.end()
            steps.append(time.monotonic() - start)
        training.close()
    finally:
        node.stop()
    torch_load = min(torch_seconds(folder, elements) for _ in range(3))
    rows = [{"name": name, "seconds": seconds,
             "ratio_to_peer": torch_load / seconds}
            for name, seconds in (
                ("restart/ready", statistics.median(ready)),
                ("restart/ready_max", max(ready)),
                ("restart/step", statistics.median(steps)))]
    return rows + [{"name": "step/usual", "seconds": statistics.median(usual)},
                   {"name": "torch_load", "seconds": torch_load}]


def main(argv: List[str]) -> int:
    parser = on_lab.parser("restart", __doc__, nodes=1, workers=2,
                           model="gpt2")
    parser.add_argument("--restarts", type=int, default=5)
    options = parser.parse_args(argv)
    elements = options.elements or \
        gpt2.SIZES[options.model or options.default_model].elements
    folder = tempfile.mkdtemp(prefix="ballast-bench-", dir="/tmp")
    try:
        rows = measure(folder, elements, options.workers, options.restarts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("%d workers, %d elements" % (options.workers, elements))
    for row in rows:
        print("%-18s %9.3f s  %s" % (
            row["name"], row["seconds"],
            on_lab.shown(row, "ratio_to_peer", "%.2fx torch.load")))
    on_lab.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(on_lab.main("restart", lambda: main(sys.argv[1:])))
