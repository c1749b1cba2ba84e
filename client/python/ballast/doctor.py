"""Checks what a worker needs on this machine and says how to fix each:

    python3 -m ballast.doctor [--json]

Library, versions, daemon's socket, limits, launcher's variables. Exit codes:
0 all well (warnings included), 1 something must be fixed, 2 usage.
"""

import argparse
import json
import os
import resource
import socket
import stat
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import __version__, _options, errors, launch

_FDS = 256


class Finding(NamedTuple):
    check: str
    state: str  # "ok", "warning", "wrong", "skipped"
    text: str
    fix: str = ""


def _python() -> Finding:
    version = "%d.%d.%d" % sys.version_info[:3]
    if sys.version_info < (3, 8):
        return Finding("python", "wrong", version, "use Python 3.8 or newer")
    return Finding("python", "ok", version)


def _numpy() -> Finding:
    try:
        import numpy
    except ImportError as error:
        return Finding("numpy", "wrong", str(error),
                       "install numpy (Debian: python3-numpy)")
    return Finding("numpy", "ok", numpy.__version__)


def _torch() -> Finding:
    try:
        import torch
    except ImportError:
        return Finding("torch", "skipped", "not installed; only ballast.torch "
                       "needs it")
    except Exception as error:  # a broken installation fails in many ways
        return Finding("torch", "wrong", "does not load: %s" % error,
                       "install it anew")
    has_hook = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
    return Finding("torch", "ok", "%s; overlap by %s" % (
        torch.__version__, "post-accumulate hooks" if has_hook
        else "AccumulateGrad nodes"))


def _library() -> Finding:
    from . import _library as library
    try:
        loaded = library.load()
        path = library.find()
    except errors.Error as error:
        return Finding("library", "wrong", str(error),
                       "eval \"$(tools/env)\", or set BALLAST_LIBRARY")
    version = loaded.ballast_version().decode()
    if version != __version__:
        return Finding("library", "wrong", "%s is version %s, this package is "
                       "%s" % (path, version, __version__),
                       "use the library and the package of one build")
    return Finding("library", "ok", "%s, version %s" % (path, version))


def _socket() -> Finding:
    try:
        address = _options.address(None, os.environ)
    except errors.Error as error:
        return Finding("socket", "wrong", str(error),
                       "set BALLAST_ADDRESS to unix:///path/of/the.sock")
    path = launch.socket_path(address)
    start = "start ballastd, or set BALLAST_ADDRESS; for one machine: " \
        "python3 -m ballast.run script.py"
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return Finding("socket", "wrong", "%s: %s" % (path, error.strerror),
                       start)
    if not stat.S_ISSOCK(mode):
        return Finding("socket", "wrong", "%s is no socket" % path,
                       "set BALLAST_ADDRESS to the daemon's")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(path)
        except PermissionError:
            return Finding("socket", "wrong", "%s: permission denied" % path,
                           "run as a user (or in a group) that may write to "
                           "it: ls -l %s" % path)
        except OSError as error:
            return Finding("socket", "wrong", "%s: nobody answers (%s)"
                           % (path, error.strerror or error), start)
    return Finding("socket", "ok", path)


def _token() -> Finding:
    try:
        token = _options.token(None, os.environ)
    except errors.Error as error:
        return Finding("token", "wrong", str(error),
                       "make BALLAST_TOKEN_FILE readable, or unset it")
    return Finding("token", "ok", "%d bytes" % len(token) if token
                   else "none (BALLAST_TOKEN_FILE is not set)")


def _topology() -> Finding:
    try:
        found = _options.topology(os.environ)
    except errors.Error as error:
        return Finding("ranks", "wrong", str(error),
                       "start by torchrun, or python3 -m ballast.run")
    return Finding("ranks", "ok", "rank %(rank)d of %(world_size)d, local "
                   "rank %(local_rank)d of %(local_world_size)d, node "
                   "%(node_rank)d" % found)


def _job() -> Finding:
    try:
        return Finding("job", "ok", _options.job_name(None, os.environ))
    except errors.Error as error:
        return Finding("job", "warning", str(error),
                       "give job= in the script, or set BALLAST_JOB")


def _coordinator() -> Finding:
    try:
        nodes = _options.topology(os.environ)
        count = nodes["world_size"] // nodes["local_world_size"]
        value = _options.coordinator(None, os.environ, count)
    except errors.Error as error:
        return Finding("coordinator", "wrong", str(error),
                       "set BALLAST_COORDINATOR to host:port")
    if count == 1:
        return Finding("coordinator", "ok", "not needed on one node")
    if not value:
        return Finding("coordinator", "warning", "neither "
                       "BALLAST_COORDINATOR nor a MASTER_ADDR elsewhere: the "
                       "daemon's node.coordinator counts",
                       "set it to node 0's host and peer port (7470)")
    host, _, port = value.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 2.0).close()
    except OSError as error:
        return Finding("coordinator", "wrong", "%s: %s" % (value, error),
                       "is node 0's daemon up, its listen.peer set, and the "
                       "port open from here?")
    return Finding("coordinator", "ok", value)


def _descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FDS:
        return Finding("descriptors", "warning", "limit %d" % soft,
                       "ulimit -n 1024")
    return Finding("descriptors", "ok", "limit %d" % soft)


def _kernel() -> Finding:
    release = os.uname().release
    number = tuple(int(part) for part in release.split(".")[:2]
                   if part.isdigit())
    if number < (5, 3):
        return Finding("kernel", "wrong", release, "Linux 5.3 or newer is "
                       "needed (pidfd_open)")
    return Finding("kernel", "ok", release)


def _page_map() -> Finding:
    try:
        with open("/proc/self/pagemap", "rb") as stream:
            stream.read(8)
    except OSError as error:
        return Finding("page map", "warning", "/proc/self/pagemap: %s"
                       % error.strerror, "writes to weights through .data or "
                       "numpy are not found then; others are")
    return Finding("page map", "ok", "edits of weights are found")


def _memory() -> Finding:
    values: Dict[str, int] = {}
    with open("/proc/meminfo", encoding="ascii") as stream:
        for line in stream:
            name, _, rest = line.partition(":")
            values[name] = int(rest.split()[0]) * 1024
    free = values.get("MemAvailable", 0)
    text = "%.1f GiB available" % (free / 2**30)
    if free < 1 << 30:
        return Finding("memory", "warning", text, "a model of P fp32 "
                       "parameters with AdamW and W workers needs about "
                       "P x (4W + 24) bytes on one node")
    return Finding("memory", "ok", text)


CHECKS: List[Callable[[], Finding]] = [
    _python, _numpy, _torch, _library, _kernel, _socket, _token, _topology,
    _job, _coordinator, _descriptors, _page_map, _memory]


def examine() -> List[Finding]:
    """All checks; one that fails itself is a finding, too."""
    findings = []
    for check in CHECKS:
        try:
            findings.append(check())
        except Exception as error:  # pylint: disable=broad-except
            findings.append(Finding(check.__name__.strip("_"), "warning",
                                    "cannot be checked: %s" % error))
    return findings


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m ballast.doctor", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options: Any = parser.parse_args(argv)
    findings = examine()
    if options.json:
        print(json.dumps([f._asdict() for f in findings], indent=2))
    else:
        for finding in findings:
            print("%-8s %-12s %s" % (finding.state, finding.check,
                                     finding.text))
            if finding.fix and finding.state != "ok":
                print("         %-12s -> %s" % ("", finding.fix))
    return 1 if any(f.state == "wrong" for f in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
