"""The programs that a shell, the lab and the quickstart use: builds them and
says where they are. As a program: prints shell code for tools/env."""

import os
import shlex
import signal
import sys
from typing import Dict

from bazel import Bazel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
PYTHON = os.path.join(ROOT, "client", "python")
# Variable -> target. The file has the target's name.
_PROGRAMS = {
    "BALLASTD": "//server/daemon:ballastd",
    "BALLASTCTL": "//client/ctl:ballastctl",
    "BALLAST_KEEPER": "//server/keeper:ballast-keeper",
    "BALLAST_LIBRARY": "//client/capi:libballast.so",
}


class BuildFailed(Exception):
    """Bazel has said why on stderr."""


def build() -> Dict[str, str]:
    """Builds what is missing; where each program is, by variable."""
    bazel = Bazel(ROOT)
    try:
        done = bazel.run("build", ["--config=quiet", *_PROGRAMS.values()],
                         stdout=sys.stderr)
        if done.returncode != 0:
            raise BuildFailed("the build failed")
        outputs = bazel.outputs()
    except RuntimeError as error:
        raise BuildFailed(str(error)) from error
    finally:
        bazel.stop()
    return {name: os.path.join(outputs, *label[2:].split(":"))
            for name, label in _PROGRAMS.items()}


def given_or_built(with_keeper: bool = False) -> Dict[str, str]:
    """The paths in the environment, if all of them are set and exist; the
    keeper's only `with_keeper`."""
    given = {name: os.environ.get(name, "") for name in _PROGRAMS
             if with_keeper or name != "BALLAST_KEEPER"}
    if all(os.path.exists(path) for path in given.values()):
        return given
    return build()


def _shell(programs: Dict[str, str]) -> str:
    lines = ["export %s=%s" % (name, shlex.quote(path))
             for name, path in sorted(programs.items())]
    for name, folder in (
            ("PATH", os.path.dirname(programs["BALLASTD"])),
            ("PATH", os.path.dirname(programs["BALLASTCTL"])),
            ("PATH", os.path.dirname(programs["BALLAST_KEEPER"])),
            ("PYTHONPATH", PYTHON)):
        quoted = shlex.quote(folder)
        lines.append(
            'case ":${%s-}:" in *:%s:*) ;; '
            "*) export %s=%s${%s:+:$%s} ;; esac" %
            (name, quoted, name, quoted, name, name))
    return "\n".join(lines)


def _interrupt(_number, _frame) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        programs = build()
    except BuildFailed as error:
        print("tools/env: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(_shell(programs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
