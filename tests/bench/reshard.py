"""tools/bench reshard: how long a planned change of size takes, without a file
and without a lost step, against a plain restart that reloads a torch.save
checkpoint of the same state in the same run.

    tools/bench reshard [--nodes N] [--workers W] [--model M | --elements E]
        [--json FILE]

N daemons on the loopback device, AdamW. All ranks leave; others come on one
node fewer, then on all N again. `reshard/AxB-CxD` is from the first call of a
worker of the new job to the return of the last one: the state of the last step
is copied, moved to whom it belongs now, and checked; all ranks have their
weights. ratio_to_peer is torch.load's seconds (from the page cache, of master
and two moments in fp32) through its own.
"""

import sys
import tempfile
from typing import Any, List

# pylint: disable=wrong-import-position
import replica
import restart
import on_lab

_NEVER = 1 << 30  # but for the last step


def measure(folder: str, options: Any, elements: int) -> List[on_lab.Row]:
    nodes = [replica.Node(folder, n, _NEVER) for n in range(options.nodes)]
    shapes = [(options.nodes, options.workers),
              (options.nodes - 1, options.workers + 1),
              (options.nodes, options.workers)]
    seconds = []
    try:
        steps = 0
        for count, workers in shapes:
            job = replica.Job(nodes[:count], workers, elements)
            seconds.append(job.open())
            if job.sessions[0].open_step != steps + 1:
                raise on_lab.LabFailed("it went on at step %d, not %d" % (
                    job.sessions[0].open_step, steps + 1))
            job.step()
            job.step()
            steps += 2
            job.detach()
    finally:
        for node in nodes:
            node.stop()
    torch_load = min(restart.torch_seconds(folder, elements)
                     for _ in range(3))
    rows = [replica.row("reshard/%dx%d-%dx%d" % (*before, *after), taken,
                        torch_load)
            for before, after, taken in zip(shapes, shapes[1:], seconds[1:])]
    return rows + [{"name": "torch_load", "seconds": torch_load}]


def main(argv: List[str]) -> int:
    parser = on_lab.parser("reshard", __doc__, nodes=2, workers=2,
                           model="gpt2")
    options = parser.parse_args(argv)
    if options.nodes < 2 or options.rate:
        parser.error("--nodes is at least 2, and there is no --rate")
    elements = replica.elements_of(options)
    with tempfile.TemporaryDirectory(prefix="ballast-bench-",
                                     dir="/tmp") as folder:
        rows = measure(folder, options, elements)
    print("%d elements" % elements)
    replica.show(rows)
    on_lab.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(on_lab.main("reshard", lambda: main(sys.argv[1:])))
