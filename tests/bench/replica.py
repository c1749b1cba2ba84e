"""tools/bench replica: what replicas cost steps, how long one is on its way,
and how long a job that has lost a node takes to go on from one, against a
plain restart that reloads a torch.save checkpoint of the same state.

    tools/bench replica [--nodes N] [--workers W] [--steps K]
        [--model M | --elements E] [--json FILE]

N daemons on the loopback device, AdamW, no files, K replicas. `step` is the
median step without one under way, `step/replica` the median of the two steps
after one became due (ratio_to_step: of `step`), `replica` from there to
the moment when all nodes hold it, after those two steps at the earliest; the
last replica is for `recover` only. The first two sets take new memory of the
system (`…/first`), the others lie in that of earlier ones. `recover`
is from the first call of a worker of the new job, on one node fewer, to the
return of the last one: all ranks have their weights. Its ratio_to_peer is
torch.load's seconds (from the page cache, of master and two moments in fp32)
through its own.
"""

import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List, Sequence, Tuple

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(_HERE)),
                                "client", "python"))

# pylint: disable=wrong-import-position
import ballast
import gpt2
import on_lab
import restart
from ballast import launch

_PATIENCE = 600.0
_CONFIG = """\
listen: {{workers: "unix://{0}/ballastd.sock", admin: "unix://{0}/admin.sock",
          http: "off", health: "off", peer: "{1}"}}
transport: {{ucx_devices: lo, peer_timeout: 3s, relink_timeout: 0s}}
replicas: {{every_steps: {2}}}
"""


class Node:
    """A daemon with a place where others meet it."""

    def __init__(self, folder: str, index: int, every_steps: int):
        folder = os.path.join(folder, "node%d" % index)
        os.makedirs(folder)
        self.address = "unix://%s/ballastd.sock" % folder
        self.peer = "127.0.0.1:%d" % launch.free_port()
        config = os.path.join(folder, "daemon.yaml")
        with open(config, "w", encoding="utf-8") as stream:
            stream.write(_CONFIG.format(folder, self.peer, every_steps))
        self._launcher = launch.Launcher(folder)
        self._daemon = self._launcher.start_daemon(
            index, [os.environ["BALLASTD"], "--config", config])
        if not launch.wait_for_daemon(self.address, _PATIENCE, self._daemon):
            raise on_lab.LabFailed("a daemon did not start")

    def kill(self) -> None:
        self._daemon.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        self._launcher.stop()


class Job:
    """One life of the job: all ranks on threads, stepping together."""

    def __init__(self, nodes: Sequence[Node], workers: int, elements: int):
        self._nodes, self._workers, self._elements = nodes, workers, elements
        self.world = len(nodes) * workers
        self.sessions: List[Any] = [None] * self.world

    def _together(self, call: Any) -> float:
        """call(rank) on all ranks; seconds until the last has returned."""
        errors: List[BaseException] = []

        def run(rank: int) -> None:
            try:
                call(rank)
            except BaseException as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True)
                   for rank in range(self.world)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE)
        if errors:
            raise errors[0]
        return time.monotonic() - start

    def open(self) -> float:
        import numpy as np  # pylint: disable=import-outside-toplevel
        tensors: Dict[str, Any] = {"w": np.zeros(self._elements, np.float32)}

        def run(rank: int) -> None:
            node = self._nodes[rank // self._workers]
            self.sessions[rank] = ballast.Session(
                job="bench", tensors=tensors, rank=rank,
                world_size=self.world, local_rank=rank % self._workers,
                local_world_size=self._workers,
                node_rank=rank // self._workers, address=node.address,
                coordinator=self._nodes[0].peer, timeout=_PATIENCE,
                optimizer={"name": "adamw", "lr": 1e-3})

        seconds = self._together(run)
        for rank, session in enumerate(self.sessions):
            session.grads["w"][...] = 0.01 * (rank + 1)
        return seconds

    def step(self) -> float:
        return self._together(lambda rank: self.sessions[rank].step())

    def detach(self) -> None:
        self._together(lambda rank: self.sessions[rank].detach())

    def close(self) -> None:
        self._together(lambda rank: self.sessions[rank].close())

    def replicas(self) -> Dict[str, Any]:
        return self.sessions[0].stats()["replicas"]

    def wait_for_replica(self, step: int) -> float:
        start = time.monotonic()
        while int(self.replicas()["last_step"]) < step:
            if time.monotonic() - start > _PATIENCE:
                raise on_lab.LabFailed("no replica of step %d: %s"
                                       % (step, self.replicas()))
            time.sleep(0.001)
        return time.monotonic() - start


def row(name: str, seconds: float, peer: float) -> on_lab.Row:
    return {"name": name, "seconds": seconds, "ratio_to_peer": peer / seconds}


def show(rows: List[on_lab.Row]) -> None:
    for one in rows:
        print("%-18s %9.3f s  %s%s" % (
            one["name"], one["seconds"],
            on_lab.shown(one, "ratio_to_step", "%.2f of a step"),
            on_lab.shown(one, "ratio_to_peer", "%.2fx torch.load")))


def measure(folder: str, options: Any, elements: int) -> List[on_lab.Row]:
    every = 6
    usual: List[float] = []
    # Of the first two sets, and of the others.
    beside: Tuple[List[float], List[float]] = ([], [])
    replicas: Tuple[List[float], List[float]] = ([], [])
    nodes = [Node(folder, n, every) for n in range(options.nodes)]
    try:
        job = Job(nodes, options.workers, elements)
        job.open()
        due = None  # when the last replica was
        for index in range(1, options.steps + 1):
            first = [job.step(), job.step()]
            # One that is still on its way would leave the next one out.
            job.wait_for_replica((index - 1) * every)
            if due is not None:
                beside[index > 3].extend(first)
                replicas[index > 3].append(time.monotonic() - due)
            steps = [job.step() for _ in range(every - 3)]
            usual += steps if due is not None else []
            job.step()
            due = time.monotonic()
        last = options.steps * every
        job.wait_for_replica(last)
        nodes[-1].kill()
        try:
            job.step()
        except ballast.Error:
            pass
        again = Job(nodes[:-1], options.workers, elements)
        recover = again.open()
        if again.sessions[0].open_step != last + 1:
            raise on_lab.LabFailed("it went on at step %d, not %d" % (
                again.sessions[0].open_step, last + 1))
        again.step()
        again.close()
    finally:
        for node in nodes:
            node.stop()
    torch_load = min(restart.torch_seconds(folder, elements)
                     for _ in range(3))
    step = statistics.median(usual)
    rows: List[on_lab.Row] = [{"name": "step", "seconds": step}]
    for kind, steps, whole in zip(("/first", ""), beside, replicas):
        seconds = statistics.median(steps)
        rows += [{"name": "step/replica" + kind, "seconds": seconds,
                  "ratio_to_step": seconds / step},
                 {"name": "replica" + kind,
                  "seconds": statistics.median(whole)}]
    return rows + [row("recover", recover, torch_load),
                   {"name": "torch_load", "seconds": torch_load}]


def elements_of(options: Any) -> int:
    return options.elements or \
        gpt2.SIZES[options.model or options.default_model].elements


def main(argv: List[str]) -> int:
    parser = on_lab.parser("replica", __doc__, nodes=3, workers=1,
                           model="gpt2")
    parser.set_defaults(steps=7)
    options = parser.parse_args(argv)
    if options.nodes < 2 or options.steps < 4 or options.rate:
        parser.error("--nodes is at least 2, --steps at least 4, and there is "
                     "no --rate")
    elements = elements_of(options)
    with tempfile.TemporaryDirectory(prefix="ballast-bench-",
                                     dir="/tmp") as folder:
        rows = measure(folder, options, elements)
    print("%d nodes, %d workers each, %d elements" % (
        options.nodes, options.workers, elements))
    show(rows)
    on_lab.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(on_lab.main("replica", lambda: main(sys.argv[1:])))
