"""Runs daemons and workers of one machine as child processes.

Shared by ``python3 -m ballast.run`` and ``tools/lab``::

    with Launcher(directory="/tmp/lab", max_restarts=1) as launcher:
        launcher.start_daemon(0, ["ballastd", "--config", "d.yaml"])
        wait_for_daemon("unix:///tmp/lab/0/ballastd.sock", timeout=10)
        for rank in range(4):
            launcher.start_worker(rank, argv, worker_environment(...))
        code = launcher.wait()

* A worker's output goes line by line, with a prefix, to ``output`` and
  without one to ``worker-R.log``; a daemon's goes to ``daemon-N.log`` only.
* ``worker-R.pid`` and ``daemon-N.pid`` hold the process id while it runs.
* Each child leads a process group of its own and is ended by that id alone: a
  worker with all that it started, a daemon by itself. The kernel kills it if
  the launcher dies (PR_SET_PDEATHSIG).
* SIGINT and SIGTERM end everything; ``wait`` then returns 128 + the signal.

Threading: everything from the thread that made the Launcher (the kernel ties
PR_SET_PDEATHSIG to the thread that forked).
"""

import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import (BinaryIO, Dict, List, Mapping, Optional, Sequence,
                    Tuple)

from ._ports import free_port  # noqa: F401

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_POLL_SECONDS = 0.1


def worker_environment(*, rank: int, world_size: int, local_rank: int,
                       local_world_size: int, node_rank: int,
                       address: str, coordinator: str = "",
                       master_addr: str = "127.0.0.1", master_port: int = 0,
                       run_id: str = "", job: str = "",
                       base: Optional[Mapping[str, str]] = None
                       ) -> Dict[str, str]:
    """The environment of one worker: ``base`` (os.environ by default) plus
    torchrun's variables, Ballast's, and one thread per process. ``job`` sets
    BALLAST_JOB unless ``base`` has it."""
    env = dict(os.environ if base is None else base)
    env.update({
        "RANK": str(rank), "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(node_rank),
        "MASTER_ADDR": master_addr, "MASTER_PORT": str(master_port),
        "BALLAST_ADDRESS": address,
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    })
    if coordinator:
        env["BALLAST_COORDINATOR"] = coordinator
    if run_id:
        env["TORCHELASTIC_RUN_ID"] = run_id
    if job:
        env.setdefault("BALLAST_JOB", job)
    return env


def socket_path(address: str) -> str:
    """The path in ``unix:///path`` (also ``unix:path`` and a bare path)."""
    for prefix in ("unix://", "unix:"):
        if address.startswith(prefix):
            return address[len(prefix):]
    return address


def daemon_answers(address: str) -> bool:
    """Whether something accepts connections on the handle socket: a daemon
    does once it has all the rest."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(socket_path(address))
        except OSError:
            return False
        return True


def wait_for_daemon(address: str, timeout: float,
                    child: "Optional[Child]" = None) -> bool:
    """Polls until the daemon answers; False after ``timeout`` seconds, or as
    soon as ``child`` (the daemon's process) has ended."""
    deadline = time.monotonic() + timeout
    while not daemon_answers(address):
        if child is not None and child.poll() is not None:
            return False
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


class Child:
    """One process: ``name`` (worker-3), ``pid``, ``log``, ``restarts``."""

    def __init__(self, name: str, argv: Sequence[str],
                 env: Optional[Mapping[str, str]], directory: str):
        self.name = name
        self.argv = list(argv)
        self.env = dict(os.environ if env is None else env)
        self.log = os.path.join(directory, name + ".log")
        self.pid_file = os.path.join(directory, name + ".pid")
        self.restarts = 0
        self.prefix = b""
        self.is_worker = False
        self.is_kept = False  # no worker, and its next life goes on
        self.end_reported = False
        self.process: "Optional[subprocess.Popen[bytes]]" = None
        self.log_file: Optional[BinaryIO] = None
        self.partial = b""
        self.returncode: Optional[int] = None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    def poll(self) -> Optional[int]:
        """The exit code (128 + signal for a signal), None while it runs."""
        if self.returncode is None and self.process is not None:
            pid = self.process.pid
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG
                         | os.WNOWAIT) is None:
                return None
            # While the dead leader is not reaped, its id is nobody else's.
            self.send_signal(signal.SIGKILL)
            code = self.process.wait()
            self.returncode = 128 - code if code < 0 else code
            _remove(self.pid_file)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signals the child (a worker: and what it started) unless its end
        was seen already."""
        if self.process is None or self.returncode is not None:
            return
        try:
            if self.is_worker:
                os.killpg(self.process.pid, number)
            else:
                os.kill(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def describe_end(self) -> str:
        code = self.returncode
        if self.process.returncode < 0:
            return "was ended by " + signal.Signals(code - 128).name
        return "exited with code %d" % code


class Launcher:
    """Starts, watches and ends children. A context manager: leaving it ends
    what still runs, workers first, then daemons, then keepers (SIGTERM,
    ``grace_seconds``, SIGKILL).

    Args:
      directory: of pid files and logs; made if missing. By default
        $BALLAST_LAB_DIR, else a new temporary directory. It is kept.
      max_restarts: how many dead workers, and daemons whose jobs a keeper
        holds, are started again, in all, with the same command and environment
        (TORCHELASTIC_RESTART_COUNT counts up).
      max_daemon_restarts: how often instead each keeper, and each daemon whose
        jobs it holds, is started again.
      output: binary stream for the workers' lines; sys.stdout by default.
    """

    def __init__(self, directory: Optional[str] = None, *,
                 max_restarts: int = 0,
                 max_daemon_restarts: Optional[int] = None,
                 output: Optional[BinaryIO] = None,
                 grace_seconds: float = 10.0):
        self.directory = os.path.abspath(
            directory or os.environ.get("BALLAST_LAB_DIR")
            or tempfile.mkdtemp(prefix="ballast-lab-"))
        os.makedirs(self.directory, exist_ok=True)
        self.max_restarts = max_restarts
        self.max_daemon_restarts = max_daemon_restarts
        self.restarts = 0  # within max_restarts
        self.grace_seconds = grace_seconds
        self.daemons: List[Child] = []
        self.keepers: List[Child] = []
        self.workers: List[Child] = []
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._signal = 0
        self._old_handlers: Dict[int, object] = {}
        self._failure = 0

    def __enter__(self) -> "Launcher":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_unused) -> None:
        try:
            self.stop()
        finally:
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)
            self._old_handlers.clear()

    def start_daemon(self, node: int, argv: Sequence[str],
                     env: Optional[Mapping[str, str]] = None,
                     is_kept: bool = False) -> Child:
        """Starts daemon ``node``; see wait_for_daemon for readiness.
        ``is_kept``: it has a keeper, and may be started again."""
        child = Child("daemon-%d" % node, argv, env, self.directory)
        child.is_kept = is_kept
        self.daemons.append(child)
        self._spawn(child, fresh_log=True)
        return child

    def start_keeper(self, node: int, argv: Sequence[str]) -> Child:
        """Starts the keeper of daemon ``node``, which is to come after it."""
        child = Child("keeper-%d" % node, argv, None, self.directory)
        child.is_kept = True  # its daemon gives it everything again
        self.keepers.append(child)
        self._spawn(child, fresh_log=True)
        return child

    def start_worker(self, rank: int, argv: Sequence[str],
                     env: Optional[Mapping[str, str]] = None) -> Child:
        """Starts worker ``rank``; its lines are prefixed ``[rank R] ``."""
        child = Child("worker-%d" % rank, argv, env, self.directory)
        child.prefix = b"[rank %d] " % rank
        child.is_worker = True
        self.workers.append(child)
        self._spawn(child, fresh_log=True)
        return child

    def wait(self, timeout: Optional[float] = None) -> int:
        """Pumps output and restarts workers until all have ended: 0 if all
        exited with 0. The first failure beyond ``max_restarts`` ends the other
        workers (SIGTERM) and is the result, as are a daemon's death (1),
        a signal (128 + number) and ``timeout`` seconds gone (124)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._signal == 0:
            self._pump(_POLL_SECONDS)
            if not self._check_workers():
                break
            if deadline is not None and time.monotonic() >= deadline:
                self._say("launcher: %g seconds are over" % timeout)
                self._failure = self._failure or 124
                break
        if self._signal:
            self._failure = self._failure or 128 + self._signal
        self._end(self.workers)
        return self._failure

    def hold(self) -> int:
        """Blocks until a signal comes: 128 + its number. Says when a child
        dies meanwhile."""
        while self._signal == 0:
            self._pump(_POLL_SECONDS)
            self._check_workers()
        return 128 + self._signal

    def stop(self) -> None:
        """Ends every child that still runs, workers first. Idempotent."""
        self._end(self.workers)
        self._end(self.daemons)
        self._end(self.keepers)

    # Private from here.

    def _on_signal(self, number, _frame) -> None:
        self._signal = number

    def _spawn(self, child: Child, fresh_log: bool) -> None:
        child.log_file = open(child.log, "wb" if fresh_log else "ab")
        child.returncode = None
        child.env["BALLAST_LAB_DIR"] = self.directory
        launcher_pid = os.getpid()

        def in_child() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != launcher_pid:  # died before prctl
                os._exit(1)

        child.process = subprocess.Popen(
            child.argv, env=child.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if child.is_worker else child.log_file,
            stderr=subprocess.STDOUT, preexec_fn=in_child,
            start_new_session=True)
        _write_atomically(child.pid_file, "%d\n" % child.process.pid)
        if child.is_worker:
            os.set_blocking(child.process.stdout.fileno(), False)
            self._selector.register(child.process.stdout,
                                    selectors.EVENT_READ, child)

    def _pump(self, timeout: float) -> None:
        if not self._selector.get_map():
            time.sleep(timeout)
            return
        for key, _ in self._selector.select(timeout):
            self._drain(key.data)

    def _drain(self, child: Child) -> None:
        stream = child.process.stdout if child.process is not None else None
        if stream is None or stream.closed:
            return
        while True:
            try:
                data = os.read(stream.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._close_pipe(child)
                return
            child.log_file.write(data)
            child.log_file.flush()
            lines = (child.partial + data).split(b"\n")
            child.partial = lines.pop()
            self._write(b"".join(child.prefix + line + b"\n"
                                 for line in lines))

    def _close_pipe(self, child: Child) -> None:
        stream = child.process.stdout
        if stream is None or stream.closed:
            return
        self._selector.unregister(stream)
        stream.close()
        if child.partial:
            self._write(child.prefix + child.partial + b"\n")
            child.partial = b""

    def _finish(self, child: Child) -> None:
        # A grandchild may hold the pipe open: take what is there, then close.
        self._drain(child)
        if child.process.stdout is not None:
            self._close_pipe(child)
        if child.log_file is not None and not child.log_file.closed:
            child.log_file.close()

    def _check_workers(self) -> bool:
        for daemon in self.keepers + self.daemons:
            if daemon.poll() is None or daemon.end_reported:
                continue
            if daemon.is_kept and self._may_restart(daemon):
                self._finish(daemon)
                self._restart(daemon)
            else:
                daemon.end_reported = True
                self._say("launcher: %s %s; see %s" %
                          (daemon.name, daemon.describe_end(), daemon.log))
                self._failure = self._failure or 1
        running = 0
        for child in self.workers:
            if child.returncode is not None:
                continue
            if child.poll() is None:
                running += 1
                continue
            self._finish(child)
            if child.returncode == 0:
                continue
            if self._may_restart(child):
                self._restart(child)
                running += 1
                continue
            self._say("launcher: %s %s; see %s" %
                      (child.name, child.describe_end(), child.log))
            self._failure = self._failure or child.returncode
        # Workers of a dead daemon end by themselves, and say why.
        daemons_dead = any(d.end_reported for d in self.daemons)
        return running > 0 and (self._failure == 0 or daemons_dead)

    def _restarts_of(self, child: Child) -> Tuple[int, int]:
        """How many there were, and how many there may be."""
        if child.is_worker or self.max_daemon_restarts is None:
            return self.restarts, self.max_restarts
        return child.restarts, self.max_daemon_restarts

    def _may_restart(self, child: Child) -> bool:
        count, limit = self._restarts_of(child)
        return self._failure == 0 and count < limit

    def _restart(self, child: Child) -> None:
        count, limit = self._restarts_of(child)
        self._say("launcher: %s %s; starting it again (%d of %d)" %
                  (child.name, child.describe_end(), count + 1, limit))
        child.restarts += 1
        if child.is_worker or self.max_daemon_restarts is None:
            self.restarts += 1
        child.env["TORCHELASTIC_RESTART_COUNT"] = str(child.restarts)
        self._spawn(child, fresh_log=False)

    def _end(self, children: Sequence[Child]) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.grace_seconds
        while any(child.poll() is None for child in children):
            if time.monotonic() >= deadline:
                for child in children:
                    child.send_signal(signal.SIGKILL)
            self._pump(0.02)
        for child in children:
            self._finish(child)

    def _say(self, line: str) -> None:
        self._write(line.encode() + b"\n")

    def _write(self, data: bytes) -> None:
        if not data:
            return
        stream = self._output or sys.stdout.buffer
        try:
            stream.write(data)
            stream.flush()
        except (BrokenPipeError, ValueError):
            self._output = open(os.devnull, "wb")


def _write_atomically(path: str, text: str) -> None:
    temporary = "%s.%d" % (path, os.getpid())
    with open(temporary, "w") as stream:
        stream.write(text)
    os.replace(temporary, path)


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
