"""Builds one benchmark of tests/bench and becomes it; see tools/bench."""

import os
import sys
from typing import List

import environment
from bazel import Bazel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
_TARGETS = {
    "kernels": "//tests/bench:kernels_bench",
    "scaling-simulated": "//tests/sim:scaling",
}
# Programs that run the built daemons on a lab.
_SCRIPTS = {name: "tests/bench/%s.py" % name
            for name in ("exchange", "latency", "local", "loss", "memory",
                         "reattach", "replica", "reshard", "restart",
                         "scaling", "snapshot", "step", "training")}


def _run_script(path: str, arguments: List[str]) -> int:
    """Builds the daemon and the client, and becomes the script."""
    if not {"-h", "--help"} & set(arguments):
        try:
            os.environ.update(environment.given_or_built())
        except environment.BuildFailed as error:
            print("tools/bench: %s" % error, file=sys.stderr)
            return 1
    os.execv("/usr/bin/python3", ["/usr/bin/python3", "-B",
                                  os.path.join(ROOT, path), *arguments])


def main(arguments: List[str]) -> int:
    if not arguments or arguments[0] not in {**_TARGETS, **_SCRIPTS}:
        print("tools/bench: which one of: %s? see --help" %
              " ".join(sorted({**_TARGETS, **_SCRIPTS})), file=sys.stderr)
        return 2
    if arguments[0] in _SCRIPTS:
        return _run_script(_SCRIPTS[arguments[0]], arguments[1:])
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
