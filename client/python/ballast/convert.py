"""Turns a DeepSpeed configuration into Ballast's:

    python3 -m ballast.convert ds_config.json --world-size 8 \\
        --local-world-size 4 --output ballast.json

Prints what changes and drops keys that change no result. The file is for
``ballast.torch.initialize(model, config="ballast.json")``. Exit codes: 0 done,
1 something has no equivalent (each is named), 2 usage.
"""

import argparse
import json
import sys
from typing import List, Optional

from . import _deepspeed_rules, deepspeed, errors


def _parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m ballast.convert", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", help="DeepSpeed's JSON file")
    parser.add_argument("--world-size", type=int, default=1, metavar="N")
    parser.add_argument("--local-world-size", type=int, metavar="W",
                        help="workers per node; default: the world size")
    parser.add_argument("--output", metavar="FILE",
                        help="default: standard output")
    parser.add_argument("--table", action="store_true",
                        help="print what becomes of each key")
    options = parser.parse_args(argv)
    if options.config is None and not options.table:
        parser.error("give a file, or --table")
    if options.local_world_size is None:
        options.local_world_size = options.world_size
    if options.world_size < 1 or options.local_world_size < 1 or \
            options.world_size % options.local_world_size:
        parser.error("--local-world-size must divide --world-size")
    return options


def main(argv: Optional[List[str]] = None) -> int:
    options = _parse(sys.argv[1:] if argv is None else argv)
    if options.table:
        print(_deepspeed_rules.table())
        return 0
    try:
        reading = deepspeed.read(options.config, options.world_size,
                                 options.local_world_size)
    except errors.InvalidArgument as error:
        print("ballast.convert: %s" % error, file=sys.stderr)
        return 1
    for change in reading.changes:
        print("changed: " + change, file=sys.stderr)
    hard = []
    for refusal in reading.refused:
        if not refusal.is_soft:
            hard.append(refusal)
            continue
        print("dropped: %s: %s (%s; %s)"
              % (refusal.key, json.dumps(refusal.value), refusal.reason,
                 refusal.nearest), file=sys.stderr)
    for refusal in hard:
        print("no equivalent: " + str(refusal), file=sys.stderr)
    if hard:
        return 1
    text = json.dumps(reading.config(), indent=2) + "\n"
    if options.output is None:
        sys.stdout.write(text)
        return 0
    try:
        with open(options.output, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        print("ballast.convert: %s" % error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
