"""tools/bench snapshot: what a snapshot costs training, and how fast it is
written, against dd with fsync and torch.save in the same run.

    tools/bench snapshot [--directory DIR] [--workers W] [--steps K]
        [--compute SECONDS] [--model M | --elements N] [--json FILE]

One node, AdamW; before each step its ranks compute for so long without this
processor, as where a GPU does it. `step` is the median step without a
snapshot; `step/saving` the slowest step while one is taken (its ratio_to_step
of 1.05 is a pause of 5 %), of the second snapshot and later ones:
the first also takes its memory (`step/saving_first`). `save` is from the call
to durable while training goes on, `save/alone` while nobody steps. dd writes
as many bytes to the same directory; torch.save the same state (master and two
moments in fp32), then fsync. ratio_to_peer of a save is torch.save's seconds
through its own; ratio_to_dd dd's.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List

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
snapshots: {{directory: "{1}"}}
"""


def timed(call: Callable[[], Any]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


def dd_seconds(folder: str, size_bytes: int) -> float:
    """A file of that size by dd, durable, in a folder."""
    path = os.path.join(folder, "dd")
    seconds = timed(lambda: subprocess.run(
        ["dd", "if=/dev/zero", "of=" + path, "bs=4M", "iflag=count_bytes",
         "count=%d" % size_bytes, "conv=fsync", "status=none"], check=True))
    os.remove(path)
    return seconds


def touch_page_cache(folder: str, size_bytes: int) -> None:
    """Takes memory for a file of so many bytes: a virtual machine is given
    what it has not used for seconds ten times as slowly, whoever writes."""
    dd_seconds(folder, size_bytes)


def durable_seconds(folder: str, size_bytes: int) -> float:
    """dd's, as whatever it is compared with."""
    touch_page_cache(folder, size_bytes)
    return dd_seconds(folder, size_bytes)


def torch_seconds(folder: str, elements: int) -> float:
    """torch.save of three fp32 arrays of so many elements, durable."""
    import torch  # pylint: disable=import-outside-toplevel
    state = {name: torch.rand(elements) for name in ("master", "m", "v")}
    path = os.path.join(folder, "torch")

    def save() -> None:
        with open(path, "wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())

    touch_page_cache(folder, 12 * elements)
    seconds = timed(save)
    os.remove(path)
    return seconds


class Training:
    """Ranks that step until they are told to stop."""

    def __init__(self, address: str, workers: int, elements: int,
                 compute: float, before_save: Callable[[], None]):
        self._barrier = threading.Barrier(workers)
        self.seconds: List[float] = []  # of rank 0's steps
        self.saving = threading.Event()
        self.while_saving: List[List[float]] = []  # by save
        self.save_seconds: List[float] = []
        self.alone_seconds: List[float] = []
        self._address, self._workers = address, workers
        self._elements, self._compute = elements, compute
        self._before_save = before_save

    def run(self, steps: int, saves: int) -> None:
        errors: List[BaseException] = []

        def guarded(rank: int) -> None:
            try:
                self._rank(rank, steps, saves)
            except BaseException as error:  # pylint: disable=broad-except
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=guarded, args=(rank,))
                   for rank in range(self._workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _rank(self, rank: int, steps: int, saves: int) -> None:
        import numpy as np  # pylint: disable=import-outside-toplevel
        tensors = {"w": np.zeros(self._elements, np.float32)}
        with ballast.Session(
                job="bench", tensors=tensors, rank=rank,
                world_size=self._workers, address=self._address,
                optimizer={"name": "adamw", "lr": 1e-3},
                timeout=_PATIENCE) as session:
            session.grads["w"][...] = 0.01 * (rank + 1)
            for _ in range(steps + 1):
                seconds = timed(lambda: self._step(session))
                if rank == 0:
                    self.seconds.append(seconds)
            for index in range(saves):
                self._save(session, rank, index)
            if rank == 0:
                for index in range(2):
                    self._before_save()
                    self.alone_seconds.append(self._saved("alone%d" % index))
            self._barrier.wait(_PATIENCE)

    def _step(self, session: Any) -> None:
        time.sleep(self._compute)
        session.step()

    def _saved(self, name: str) -> float:
        """Seconds of a snapshot of that name."""
        command = [os.environ["BALLASTCTL"], "--address",
                   self._address.replace("ballastd.sock", "admin.sock"),
                   "checkpoint", "save", "bench", name]
        return timed(lambda: subprocess.run(command, check=True,
                                            stdout=subprocess.DEVNULL))

    def _save(self, session: Any, rank: int, index: int) -> None:
        """The daemon saves while all ranks step."""
        if rank == 0:
            self._before_save()
        self._barrier.wait(_PATIENCE)
        before = session.stats()["snapshots"]["saved"]
        saver = None
        if rank == 0:
            self.saving.set()
            self.while_saving.append([])

            def ask() -> None:
                self.save_seconds.append(self._saved("save%d" % index))
                self.saving.clear()

            saver = threading.Thread(target=ask)
            saver.start()
        self._barrier.wait(_PATIENCE)
        while True:
            seconds = timed(lambda: self._step(session))
            if rank == 0:
                self.while_saving[-1].append(seconds)
            self._barrier.wait(_PATIENCE)
            is_over = not self.saving.is_set()
            self._barrier.wait(_PATIENCE)
            if is_over:
                break
        if saver is not None:
            saver.join()
            assert session.stats()["snapshots"]["saved"] == before + 1


def measure(folder: str, elements: int, workers: int, steps: int,
            compute: float) -> List[on_lab.Row]:
    root = os.path.join(folder, "snapshots")
    os.mkdir(root)
    run = tempfile.mkdtemp(prefix="ballast-bench-", dir="/tmp")
    launcher = launch.Launcher(run)
    try:
        config = os.path.join(run, "daemon.yaml")
        with open(config, "w", encoding="utf-8") as stream:
            stream.write(_CONFIG.format(run, root))
        child = launcher.start_daemon(0, [os.environ["BALLASTD"], "--config",
                                          config])
        address = "unix://%s/ballastd.sock" % run
        if not launch.wait_for_daemon(address, _PATIENCE, child):
            raise on_lab.LabFailed("the daemon did not start")
        training = Training(
            address, workers, elements, compute,
            lambda: touch_page_cache(folder, 12 * elements))
        training.run(steps, saves=3)
    finally:
        launcher.stop()
        shutil.rmtree(run, ignore_errors=True)
    size = sum(os.path.getsize(os.path.join(path, name))
               for path, _, names in os.walk(os.path.join(root, "bench",
                                                          "save1"))
               for name in names)
    shutil.rmtree(root)
    return rows_of(training, size,
                   min(durable_seconds(folder, size) for _ in range(2)),
                   min(torch_seconds(folder, elements) for _ in range(2)))


def rows_of(training: Training, size_bytes: int, dd: float,
            torch_save: float) -> List[on_lab.Row]:
    step = statistics.median(training.seconds[1:])
    first, later = training.while_saving[0], training.while_saving[1:]
    rows: List[Dict[str, Any]] = [{"name": "step", "seconds": step}]
    for name, seconds in (
            ("step/saving", max(max(steps) for steps in later)),
            ("step/saving_median", statistics.median(sum(later, []))),
            ("step/saving_first", max(first))):
        rows.append({"name": name, "seconds": seconds,
                     "ratio_to_step": seconds / step})
    for name, seconds in (("save", min(training.save_seconds[1:])),
                          ("save/alone", min(training.alone_seconds))):
        rows.append({"name": name, "seconds": seconds, "bytes": size_bytes,
                     "ratio_to_peer": torch_save / seconds,
                     "ratio_to_dd": dd / seconds})
    rows += [{"name": "dd", "seconds": dd, "bytes": size_bytes},
             {"name": "torch_save", "seconds": torch_save,
              "bytes": size_bytes}]
    return rows


def table(rows: List[on_lab.Row]) -> str:
    lines = ["%-18s %9s %9s %9s %9s %18s" % (
        "", "seconds", "MB/s", "of a step", "of dd", "against torch.save")]
    for row in rows:
        speed = row["bytes"] / row["seconds"] / 1e6 if "bytes" in row else None
        lines.append("%-18s %9.3f %9s %9s %9s %18s" % (
            row["name"], row["seconds"],
            "" if speed is None else "%.0f" % speed,
            on_lab.shown(row, "ratio_to_step", "%.2f"),
            on_lab.shown(row, "ratio_to_dd", "%.2f"),
            on_lab.shown(row, "ratio_to_peer", "%.2fx")))
    return "\n".join(lines)


def main(argv: List[str]) -> int:
    parser = on_lab.parser("snapshot", __doc__, nodes=1, workers=2,
                           model="gpt2")
    parser.add_argument("--directory", default="/var/tmp",
                        help="of the disk that is measured")
    parser.add_argument("--compute", type=float, default=0.5,
                        metavar="SECONDS", help="of forward and backward")
    parser.set_defaults(steps=10)
    options = parser.parse_args(argv)
    elements = options.elements or \
        gpt2.SIZES[options.model or options.default_model].elements
    folder = tempfile.mkdtemp(prefix="ballast-bench-", dir=options.directory)
    try:
        rows = measure(folder, elements, options.workers, options.steps,
                       options.compute)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("%d workers, %d elements, %.2f s of computing, %s" % (
        options.workers, elements, options.compute, options.directory))
    print(table(rows))
    on_lab.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(on_lab.main("snapshot", lambda: main(sys.argv[1:])))
