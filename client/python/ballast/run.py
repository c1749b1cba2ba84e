"""One machine without an installation:

    python3 -m ballast.run --workers W [--max-restarts K] script.py args…

starts a daemon if none answers at BALLAST_ADDRESS, runs `script.py` in W
worker processes with torchrun's variables and Ballast's, prefixes their
output, starts a dead worker or its own dead daemon again (at most K times in
all; a keeper holds the job meanwhile) and ends everything by process id. The
exit code is 0 if every worker's was.

Environment: BALLAST_ADDRESS (a running daemon), BALLASTD and BALLAST_KEEPER
(the programs to start otherwise; default: ballastd and ballast-keeper from
PATH, and no keeper if there is none), BALLAST_JOB (default: run-PID),
BALLAST_LAB_DIR (pids and logs; default: a new temporary directory, kept).
"""

import argparse
import os
import shutil
import sys
from typing import List, Optional, Tuple

from . import errors, launch

_START_SECONDS = 30.0
_MAX_WORKERS = 1024
_CONFIG = """\
listen:
  workers: "unix://{socket}"
  admin: "unix://{admin}"
  http: "127.0.0.1:{http}"
  health: "off"
  peer: "off"
"""
_KEEPER_CONFIG = """\
keeper:
  socket: "{socket}"
  program: "{program}"
"""


def _parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m ballast.run", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, metavar="W",
                        help="worker processes, 1 by default")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="K",
                        help="dead workers, and daemons, to start again, in "
                        "all")
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER,
                        help="what the script gets")
    options = parser.parse_args(argv)
    if not 1 <= options.workers <= _MAX_WORKERS:
        parser.error("--workers must be 1 to %d" % _MAX_WORKERS)
    if options.max_restarts < 0:
        parser.error("--max-restarts must not be negative")
    return options


def find_daemon() -> str:
    """The program to start: $BALLASTD, or ballastd on the PATH."""
    configured = os.environ.get("BALLASTD")
    path = configured or shutil.which("ballastd")
    if not path or not os.access(path, os.X_OK):
        raise errors.FailedPrecondition(
            "no daemon answers and %s; build it and set BALLASTD "
            "(eval \"$(tools/env)\" does both)"
            % ("BALLASTD=%s is no program" % configured if configured
               else "ballastd is not on the PATH"))
    return path


def find_keeper() -> Optional[str]:
    """The program that holds jobs while the daemon is started again."""
    path = os.environ.get("BALLAST_KEEPER") or shutil.which("ballast-keeper")
    return os.path.abspath(path) if path and os.access(path, os.X_OK) else None


def _socket_path(address: Optional[str], directory: str) -> str:
    return launch.socket_path(address) if address else os.path.join(
        directory, "ballastd.sock")


def start_daemon(launcher: launch.Launcher,
                 address: Optional[str]) -> Tuple[str, str]:
    """Starts daemon 0 on `address` (by default in the launcher's directory)
    and waits until it answers; (its address, its metrics page)."""
    socket = _socket_path(address, launcher.directory)
    keeper = find_keeper()
    http = launch.free_port()
    config = os.path.join(launcher.directory, "daemon-0.yaml")
    with open(config, "w", encoding="utf-8") as stream:
        stream.write(_CONFIG.format(
            socket=socket, http=http,
            admin=os.path.join(launcher.directory, "admin.sock")))
        if keeper is not None:
            stream.write(_KEEPER_CONFIG.format(
                program=keeper,
                socket=os.path.join(launcher.directory, "keeper.sock")))
    daemon = launcher.start_daemon(0, [find_daemon(), "--config", config],
                                   is_kept=keeper is not None)
    if not launch.wait_for_daemon(socket, _START_SECONDS, daemon):
        raise errors.Unavailable(
            "the daemon that was started does not answer at %s; see %s"
            % (socket, daemon.log))
    return "unix://" + socket, "http://127.0.0.1:%d/metrics" % http


def run(options: argparse.Namespace) -> int:
    """Everything after the command line; the exit code."""
    address = os.environ.get("BALLAST_ADDRESS")
    job = os.environ.get("BALLAST_JOB") or "run-%d" % os.getpid()
    with launch.Launcher(max_restarts=options.max_restarts) as launcher:
        print("ballast.run: pids and logs in %s" % launcher.directory,
              flush=True)
        if not address or not launch.daemon_answers(address):
            address, metrics = start_daemon(launcher, address)
            print("ballast.run: daemon at %s, metrics at %s"
                  % (address, metrics), flush=True)
        port = launch.free_port()
        for rank in range(options.workers):
            env = launch.worker_environment(
                rank=rank, world_size=options.workers, local_rank=rank,
                local_world_size=options.workers, node_rank=0,
                address=address, master_port=port, run_id=job, job=job)
            launcher.start_worker(
                rank, [sys.executable, options.script] + options.arguments,
                env)
        return launcher.wait()


def main(argv: Optional[List[str]] = None) -> int:
    options = _parse(sys.argv[1:] if argv is None else argv)
    try:
        return run(options)
    except errors.Error as error:
        print("ballast.run: %s" % error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
