"""tools/bench scaling: the exchange over 1 to N nodes of one machine.

    tools/bench scaling [--nodes N] [--workers W] [--rate R]
        [--model M | --elements N] [--preset P]… [--steps K] [--json FILE]

A lab per number of nodes. Bytes follow (N-1)/N; seconds do too while the link
is the limit, and grow with the nodes once this machine's processor is: the
last column says which. All four presets if none is named.
"""

import os
import sys
from typing import List

import exchange
import on_lab


def main(argv: List[str]) -> int:
    parser = on_lab.parser("scaling", __doc__, nodes=8, workers=1,
                           model="gpt2")
    parser.add_argument("--preset", action="append")
    options = parser.parse_args(argv)
    presets = options.preset or exchange.PRESETS
    everything: List[on_lab.Row] = []
    for nodes in range(1, options.nodes + 1):
        rows = on_lab.measured(
            (["tcp"] if nodes > 1 else []) +
            ["exchange/" + preset for preset in presets], nodes=nodes,
            workers=options.workers, rate=options.rate,
            **on_lab.model_of(options))["rows"]
        exchange.add_ratios(rows, os.cpu_count() or 1)
        print("%d nodes" % nodes)
        print(exchange.table(rows), flush=True)
        everything += [{**row, "nodes": nodes} for row in rows]
    on_lab.write(options.json, everything)
    return on_lab.judge(everything)


if __name__ == "__main__":
    sys.exit(on_lab.main("scaling", lambda: main(sys.argv[1:])))
