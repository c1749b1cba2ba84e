"""Network namespaces with a cable each: nodes whose cable can be pulled. Needs
root and iproute2."""

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess

import lab

_count = itertools.count()
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


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


def _set_namespace(stream):
    if _LIBC.setns(stream.fileno(), _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def left():
    """Namespaces of this process that are still there."""
    return [line.split()[0] for line in _run("ip", "netns", "list")
            .stdout.splitlines() if line.startswith("ballast-it-%d-"
                                                    % os.getpid())]


class Link:
    """Names, addresses and devices by node; remove() is idempotent.

    Two nodes are the two ends of one cable: when it is cut, both devices go
    down. More have a cable each to a switch: the others see nothing but
    silence.
    """

    def __init__(self, count=2):
        number = next(_count)
        prefix = "ballast-it-%d-%d-" % (os.getpid(), number)
        self.names = [prefix + str(node) for node in range(count)]
        self._switch = prefix + "switch" if count > 2 else ""
        # At most 15 characters.
        self.devices = ["bit%d" % node for node in range(count)]
        self.addresses = ["10.77.%d.%d" % (number % 250, node + 1)
                          for node in range(count)]
        try:
            self._make()
        except BaseException:
            self.remove()
            raise

    def _make(self):
        for name in self._all():
            self._ip("netns", "add", name)
        if self._switch:
            self._ip("-n", self._switch, "link", "add", "bridge", "type",
                     "bridge")
            self._ip("-n", self._switch, "link", "set", "bridge", "up")
            for node, device in enumerate(self.devices):
                self._cable(node, self._switch, "to-" + device)
                self._ip("-n", self._switch, "link", "set", "to-" + device,
                         "master", "bridge", "up")
        else:
            self._cable(0, self.names[1], self.devices[1])
        for node, name in enumerate(self.names):
            self._ip("-n", name, "address", "add",
                     self.addresses[node] + "/24", "dev", self.devices[node])
            self._ip("-n", name, "link", "set", "lo", "up")
        self.mend()

    def _cable(self, node, peer, device):
        """Both ends are born inside: the host never sees them."""
        self._ip("-n", self.names[node], "link", "add", self.devices[node],
                 "type", "veth", "peer", "name", device, "netns", peer)

    def _all(self):
        return self.names + ([self._switch] if self._switch else [])

    @staticmethod
    def _ip(*arguments):
        done = _run("ip", *arguments)
        if done.returncode != 0:
            raise RuntimeError("ip %s: %s" % (" ".join(arguments), done.stdout))

    def inside(self, node, command):
        """The command as run in the node's namespace, under its own pid."""
        return ["ip", "netns", "exec", self.names[node], *command]

    @contextlib.contextmanager
    def entered(self, node):
        """This thread, and no other, is in the node's namespace."""
        with open("/proc/thread-self/ns/net", "rb") as home, \
                open("/run/netns/" + self.names[node], "rb") as there:
            _set_namespace(there)
            try:
                yield
            finally:
                _set_namespace(home)

    def cut(self, node):
        self._ip("-n", self.names[node], "link", "set", self.devices[node],
                 "down")

    def mend(self):
        for node, name in enumerate(self.names):
            self._ip("-n", name, "link", "set", self.devices[node], "up")
        # Until then a device counts as unusable.
        lab.poll(lambda: all(map(self._is_up, range(len(self.names)))),
                 "all ends of the link are up")

    def _is_up(self, node):
        return "state UP" in _run("ip", "-n", self.names[node], "link", "show",
                                  "dev", self.devices[node]).stdout

    def remove(self):
        for name in self._all():
            with contextlib.suppress(Exception):
                _run("ip", "netns", "del", name)
