"""Two network namespaces with one link between them: nodes whose cable can be
pulled. Needs root and iproute2."""

import contextlib
import itertools
import os
import shutil
import subprocess

import lab

_count = itertools.count()


def _run(*arguments):
    return subprocess.run(arguments, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60)


def missing():
    """Why there can be no namespaces here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip (iproute2)"
    name = "ballast-it-probe-%d" % os.getpid()
    probe = _run("ip", "netns", "add", name)
    if probe.returncode != 0:
        return "no network namespaces: " + probe.stdout.strip()
    _run("ip", "netns", "del", name)
    return ""


def left():
    """Namespaces of this process that are still there."""
    return [line.split()[0] for line in _run("ip", "netns", "list")
            .stdout.splitlines() if line.startswith("ballast-it-%d-"
                                                    % os.getpid())]


class Link:
    """Names, addresses and devices by node (0, 1); remove() is idempotent."""

    def __init__(self):
        number = next(_count)
        self.names = ["ballast-it-%d-%d-%d" % (os.getpid(), number, node)
                      for node in range(2)]
        # At most 15 characters.
        self.devices = ["bit%d" % node for node in range(2)]
        self.addresses = ["10.77.%d.%d" % (number % 250, node + 1)
                          for node in range(2)]
        try:
            self._make()
        except BaseException:
            self.remove()
            raise

    def _make(self):
        for name in self.names:
            self._ip("netns", "add", name)
        # Both ends are born inside: the host never sees them.
        self._ip("-n", self.names[0], "link", "add", self.devices[0], "type",
                 "veth", "peer", "name", self.devices[1], "netns",
                 self.names[1])
        for node, name in enumerate(self.names):
            self._ip("-n", name, "address", "add",
                     self.addresses[node] + "/24", "dev", self.devices[node])
            self._ip("-n", name, "link", "set", "lo", "up")
        self.mend()

    @staticmethod
    def _ip(*arguments):
        done = _run("ip", *arguments)
        if done.returncode != 0:
            raise RuntimeError("ip %s: %s" % (" ".join(arguments), done.stdout))

    def inside(self, node, command):
        """The command as run in the node's namespace, under its own pid."""
        return ["ip", "netns", "exec", self.names[node], *command]

    def cut(self, node):
        self._ip("-n", self.names[node], "link", "set", self.devices[node],
                 "down")

    def mend(self):
        for node, name in enumerate(self.names):
            self._ip("-n", name, "link", "set", self.devices[node], "up")
        # Until then a device counts as unusable.
        lab.poll(lambda: all(self._is_up(node) for node in (0, 1)),
                 "both ends of the link are up")

    def _is_up(self, node):
        return "state UP" in _run("ip", "-n", self.names[node], "link", "show",
                                  "dev", self.devices[node]).stdout

    def remove(self):
        for name in self.names:
            with contextlib.suppress(Exception):
                _run("ip", "netns", "del", name)
