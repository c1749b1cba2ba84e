"""Real daemons and workers for the integration tests.

    class MyTest(lab.TestCase):
        def test_x(self):
            daemon = self.start_daemon()
            def worker(rank):
                with daemon.session(rank, 2, tensors) as s: ...
            lab.run_ranks(2, worker)

Ranks are threads of the test (sessions are independent of one another) or,
where they are to die, processes. Every wait has a bound.
"""

import contextlib
import faulthandler
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

try:
    import numpy as np
except ImportError:
    np = None

import ballast
import footprint
from ballast import launch

# Long enough for a busy machine; a test that needs it has failed.
PATIENCE = 60.0

_CONFIG = """\
listen:
  workers: "unix://{directory}/ballastd.sock"
  admin: "unix://{directory}/admin.sock"
  http: "{http}"
  health: "off"
  peer: "off"
"""


def poll(condition, what, seconds=PATIENCE):
    """Waits until condition() is true; fails with `what` otherwise."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within %g s: %s" % (seconds, what))
        time.sleep(0.01)


def run_ranks(world, function):
    """function(rank) in one thread per rank; the results by rank. The first
    exception (in time: others may follow from it) is raised, a thread that
    hangs is an error."""
    results, errors = [None] * world, []

    def run(rank):
        try:
            results[rank] = function(rank)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True)
               for rank in range(world)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 2 * PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(all_threads=True)
        raise AssertionError("a rank hangs; errors so far: %r" % errors)
    if errors:
        raise errors[0]
    return results


def in_background(function, *arguments):
    """Runs it on a thread; the result waits for its end, bounded, and
    raises what it raised."""
    errors = []

    def run():
        try:
            function(*arguments)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join():
        thread.join(2 * PATIENCE)
        if errors:
            raise errors[0]
        if thread.is_alive():
            raise AssertionError("what runs in the background hangs")
    return join


class Daemon:
    """One ballastd in its own directory. `entered`: the context in which its
    network is there."""

    def __init__(self, directory, overrides=(), http=False, wrap=None,
                 entered=contextlib.nullcontext):
        self.directory = directory
        self.address = "unix://%s/ballastd.sock" % directory
        self.admin = "unix://%s/admin.sock" % directory
        self.http_port = launch.free_port() if http else 0
        self.overrides = list(overrides)
        self._entered = entered
        self.launcher = launch.Launcher(directory)
        self.child = None
        config = os.path.join(directory, "daemon.yaml")
        with open(config, "w") as stream:
            stream.write(_CONFIG.format(
                directory=directory,
                http="127.0.0.1:%d" % self.http_port if http else "off"))
        self.command = [os.environ["BALLASTD"], "--config", config]
        for override in self.overrides:
            self.command += ["--set", override]
        if wrap is not None:
            self.command = wrap(self.command)

    def start(self):
        self.child = self.launcher.start_daemon(0, self.command)
        if not launch.wait_for_daemon(self.address, PATIENCE, self.child):
            raise AssertionError("daemon did not start:\n" + self.log())
        return self

    @property
    def pid(self):
        return self.child.pid

    def log(self):
        with open(self.child.log, errors="replace") as stream:
            return stream.read()

    def signal(self, number):
        self.child.send_signal(number)

    def wait(self):
        """Its exit code (128 + signal for a signal)."""
        poll(lambda: self.child.poll() is not None, "the daemon has ended")
        return self.child.returncode

    def stop(self):
        self.launcher.stop()

    def footprint(self):
        return footprint.of(self.pid)

    def fds(self):
        """How many descriptors the daemon holds."""
        return self.footprint().fds

    def memfds(self):
        """How many memfds the daemon holds: segments of jobs."""
        return self.footprint().memfds

    def control(self, *arguments):
        """What `ballastctl … --json` says of this daemon; None if it does not
        find it."""
        output = subprocess.run(
            [os.environ["BALLASTCTL"], "--address", self.admin, "--json",
             *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=PATIENCE)
        return json.loads(output.stdout) if output.returncode == 0 else None

    def metrics(self):
        """The text of /metrics; needs http=True."""
        address = "http://127.0.0.1:%d/metrics" % self.http_port
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with self._entered(), opener.open(address, timeout=PATIENCE) as reply:
            return reply.read().decode()

    def session(self, rank, world, tensors, **options):
        arguments = dict(
            job="job", tensors=tensors, rank=rank, world_size=world,
            optimizer={"name": "sgd", "lr": 1.0}, address=self.address,
            timeout=PATIENCE)
        arguments.update(options)
        return ballast.Session(**arguments)

    def worker(self, script, *arguments, rank=0, world=1):
        """A Python process with torchrun's variables; see Worker."""
        env = launch.worker_environment(
            rank=rank, world_size=world, local_rank=rank,
            local_world_size=world, node_rank=0, address=self.address,
            job="job")
        return Worker(script, arguments, env)


class Worker:
    """A process that prints lines; `line()` reads one, bounded by the pipe's
    end: a worker that dies does not block its reader."""

    def __init__(self, script, arguments, env):
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)], env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @property
    def pid(self):
        return self.process.pid

    def line(self):
        return self.process.stdout.readline().rstrip("\n")

    def expect(self, text):
        """Reads lines until one contains `text`."""
        seen = []
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError("no line with %r in:\n%s"
                                     % (text, "".join(seen)))
            seen.append(line)
            if text in line:
                return line.rstrip("\n")

    def kill(self):
        self.process.kill()
        self.finish()

    def finish(self):
        """(exit code, rest of the output)"""
        # communicate() would lose what expect() has read ahead.
        output = []
        reader = threading.Thread(
            target=lambda: output.append(self.process.stdout.read()),
            daemon=True)
        reader.start()
        reader.join(PATIENCE)
        if reader.is_alive():
            self.process.kill()
            raise AssertionError("the worker did not end in %d s" % PATIENCE)
        return self.process.wait(PATIENCE), output[0]


def missing():
    """Why these tests cannot run here, or ""."""
    if np is None:
        return "no numpy"
    for variable in ("BALLASTD", "BALLASTCTL", "BALLAST_LIBRARY"):
        path = os.environ.get(variable, "")
        if not os.path.exists(path):
            return "%s=%s is not there" % (variable, path)
    return ""


@unittest.skipIf(missing(), missing())
class TestCase(unittest.TestCase):
    """Starts daemons and ends them; shows their logs when a test fails."""

    def digest_of(self, workers):
        """What all of them print at their end as "digest X"."""
        found = set()
        for worker in workers:
            code, output = worker.finish()
            self.assertEqual(code, 0, output)
            said = re.search(r"digest (\w+)", output)
            self.assertIsNotNone(said, output)
            found.add(said.group(1))
        self.assertEqual(len(found), 1, found)
        return found.pop()

    def start_daemon(self, *overrides, **options):
        """`options`: of Daemon. `wrap` turns the daemon's command into the one
        to run; under it the daemon must have the same pid."""
        # Short: a socket's path has at most 107 bytes.
        directory = tempfile.mkdtemp(prefix="ballast-it-", dir="/tmp")
        daemon = Daemon(directory, overrides, **options)
        self.addCleanup(self._clean, daemon)
        return daemon.start()

    def _clean(self, daemon):
        daemon.stop()
        outcome = getattr(self, "_outcome", None)
        result = getattr(outcome, "result", None)
        failed = result is not None and any(
            self in (test, getattr(test, "test_case", None))  # of a subtest
            for test, _ in result.failures + result.errors)
        if failed or os.environ.get("BALLAST_TEST_LOGS"):
            print("daemon's log:\n" + daemon.log()[-4000:], file=sys.stderr)
        shutil.rmtree(daemon.directory, ignore_errors=True)

    def start_worker(self, daemon, script, *arguments, rank=0, world=1):
        worker = daemon.worker(script, *arguments, rank=rank, world=world)

        def end():
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            worker.process.stdout.close()
            with contextlib.suppress(OSError):
                worker.process.stdin.close()

        self.addCleanup(end)
        return worker

    def assertRaisesWith(self, kind, parts, call):
        with self.assertRaises(kind) as caught:
            call()
        for part in [parts] if isinstance(parts, str) else parts:
            self.assertIn(part, str(caught.exception))
        return caught.exception

    def assertBitsEqual(self, left, right, message=""):
        left, right = np.asarray(left), np.asarray(right)
        self.assertEqual(left.dtype.itemsize, right.dtype.itemsize)
        self.assertEqual(left.tobytes(), right.tobytes(), message)
