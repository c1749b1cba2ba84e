"""Bazel as the tools call it, and what it tells about a run of tests.

BALLAST_OUTPUT_BASE moves the outputs (several people in one tree: each their
own); BALLAST_BAZEL_FLAGS are further flags of build and test, split like a
shell would.
"""

import hashlib
import json
import os
import shlex
import signal
import subprocess
from typing import (Callable, Dict, Iterator, List, NamedTuple, Optional,
                    Sequence)
from urllib.parse import unquote, urlparse


class Target(NamedTuple):
    """A test target of one run. ``status`` is Bazel's word (PASSED, FAILED,
    TIMEOUT, …) or NOT_BUILT; the files are None where it did not run."""
    label: str
    status: str
    log: Optional[str]
    xml: Optional[str]


class Bazel:
    """Confined to one thread. ``stop`` ends the server unless it was there
    before: whoever keeps one keeps it."""

    def __init__(self, root: str):
        self.root = root
        self._base = os.environ.get("BALLAST_OUTPUT_BASE", "")
        self._flags = shlex.split(os.environ.get("BALLAST_BAZEL_FLAGS", ""))
        self._was_running = self._server_runs()

    def run(self, command: str, arguments: Sequence[str], **options):
        """Runs ``bazel COMMAND ARGUMENTS``; a subprocess.run."""
        return subprocess.run(self._argv(command, arguments), cwd=self.root,
                              stdin=subprocess.DEVNULL, check=False, **options)

    def lines(self, command: str, arguments: Sequence[str],
              each: Callable[[str], None]) -> int:
        """The same, handing over every line of output as it comes; the exit
        code. An exception cancels the command."""
        with subprocess.Popen(
                self._argv(command, arguments), cwd=self.root,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
                errors="replace") as process:
            try:
                for line in process.stdout:
                    each(line.rstrip("\n"))
            except BaseException:
                process.send_signal(signal.SIGINT)
                raise
        return process.returncode

    def _argv(self, command: str, arguments: Sequence[str]) -> List[str]:
        argv = ["bazel"]
        if self._base:
            argv.append("--output_base=" + self._base)
        argv.append(command)
        if command in ("build", "test") and self._base:
            argv.append("--symlink_prefix=/")  # the tree's links are not ours
        if command in ("build", "test", "info"):
            argv += self._flags
        return argv + list(arguments)

    def query(self, expression: str, output: str = "label") -> str:
        """The answer of ``bazel query``; raises RuntimeError if it fails."""
        done = self.run("query", ["--output=" + output, expression],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                        text=True)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines()
                      if not line.startswith(("Loading:", "    ", "Start"))]
            raise RuntimeError("\n".join(errors) or "bazel query " +
                               expression)
        return done.stdout

    def outputs(self) -> str:
        """The folder of programs and generated headers."""
        done = self.run("info", ["bazel-bin"], stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError("bazel info: " + done.stderr.strip())
        return done.stdout.strip()

    def labels(self, expression: str) -> List[str]:
        return self.query(expression).split()

    def stop(self) -> None:
        if not self._was_running:
            self.run("shutdown", [], stderr=subprocess.DEVNULL)

    def _server_runs(self) -> bool:
        # Bazel names its default output base after the workspace's path.
        base = self._base or hashlib.md5(self.root.encode()).hexdigest()
        base = ("/" + base.lstrip("/")).encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as stream:
                    arguments = stream.read().split(b"\0")
            except OSError:
                continue
            if any(argument.startswith(b"--output_base=")
                   and argument.endswith(base) for argument in arguments):
                return True
        return False


def targets_of(events: str, expected: Sequence[str]) -> Iterator[Target]:
    """What became of the ``expected`` labels, by the lines of a
    --build_event_json_file."""
    status: Dict[str, str] = {}
    outputs: Dict[str, Dict[str, str]] = {}
    for line in events.splitlines():
        event = json.loads(line)
        identity = event.get("id", {})
        if "testSummary" in event:
            label = identity["testSummary"]["label"]
            status[label] = event["testSummary"]["overallStatus"]
        elif "testResult" in event:
            label = identity["testResult"]["label"]
            outputs[label] = {
                item["name"]: unquote(urlparse(item["uri"]).path)
                for item in event["testResult"].get("testActionOutput", [])
                if item.get("uri", "").startswith("file:")}
    for label in sorted(expected):
        found = outputs.get(label, {})
        yield Target(label, status.get(label, "NOT_BUILT"),
                     found.get("test.log"), found.get("test.xml"))
