"""Builds one benchmark of tests/bench and becomes it; see tools/bench."""

import os
import sys
from typing import List

from bazel import Bazel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
_TARGETS = {
    "kernels": "//tests/bench:kernels_bench",
}


def main(arguments: List[str]) -> int:
    if not arguments or arguments[0] not in _TARGETS:
        print("tools/bench: which one of: %s? see --help" %
              " ".join(sorted(_TARGETS)), file=sys.stderr)
        return 2
    label = _TARGETS[arguments[0]]
    bazel = Bazel(ROOT)
    try:
        if bazel.run("build", ["--config=quiet", label],
                     stdout=sys.stderr).returncode != 0:
            return 1  # Bazel has said why
        program = os.path.join(bazel.outputs(), *label[2:].split(":"))
    finally:
        bazel.stop()
    sys.stdout.flush()
    os.execv(program, [program, *arguments[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
