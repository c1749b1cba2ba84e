"""Network namespaces with rate-limited links, for the lab's nodes.

    blab<ID>n0 ── eth0 ═ tbf ═ p0 ┐
    blab<ID>n1 ── eth0 ═ tbf ═ p1 ┼ bridge br0 in blab<ID>sw
    …                             ┘

Every interface and address lies inside these namespaces; the machine's own
network is not touched. A link has the rate in each direction: the node's side
shapes what the node sends, the bridge's side what it receives. Removing the
namespaces, which the lab's id names, removes everything.

What the commands are is pure (`Network`); `apply` and `remove` run them.
Threading: none.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import List, NamedTuple, Sequence

INTERFACE = "eth0"
ID_PATTERN = re.compile(r"[a-z0-9]{1,8}\Z")
_PREFIX = "blab"
_BRIDGE = "br0"
_BURST = "256k"
_LATENCY = "50ms"
_RATE = re.compile(r"([0-9]{1,6})(k|m|g)bit\Z")
_CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}
_GRACE_SECONDS = 3.0

Command = List[str]


class NetworkError(Exception):
    """Says what could not be done and why."""


def parse_rate(text: str) -> str:
    """`text` if it is a rate of tc's: a whole number and kbit, mbit, gbit."""
    match = _RATE.match(text)
    if match is None or int(match.group(1)) == 0:
        raise ValueError(
            "%r is no rate: a whole number and kbit, mbit or gbit, "
            "like 1gbit" % text)
    return text


class Network(NamedTuple):
    """The namespaces of lab `lab_id`, with `nodes` nodes at `rate`."""
    lab_id: str
    nodes: int
    rate: str

    def namespace(self, node: int) -> str:
        return "%s%sn%d" % (_PREFIX, self.lab_id, node)

    @property
    def switch(self) -> str:
        return "%s%ssw" % (_PREFIX, self.lab_id)

    def address(self, node: int) -> str:
        return "10.77.0.%d" % (node + 1)

    def inside(self, node: int, command: Sequence[str]) -> Command:
        """`command`, run in the node's namespace. The process that does it
        becomes the command: same pid, same parent."""
        return ["ip", "netns", "exec", self.namespace(node), *command]

    def up(self) -> List[Command]:
        commands = [["ip", "netns", "add", self.switch],
                    _ip(self.switch, "link add", _BRIDGE, "type bridge"),
                    _ip(self.switch, "link set", _BRIDGE, "up")]
        for node in range(self.nodes):
            commands += self._link_up(node)
        return commands

    def _link_up(self, node: int) -> List[Command]:
        name, port = self.namespace(node), "p%d" % node
        return [
            ["ip", "netns", "add", name],
            _ip(name, "link set lo up"),
            _ip(name, "link add", INTERFACE, "type veth peer name", port,
                "netns", self.switch),
            # No IPv6 chatter: the counters are to show the job alone.
            _ip(name, "link set", INTERFACE, "addrgenmode none"),
            _ip(self.switch, "link set", port, "addrgenmode none"),
            _ip(name, "addr add", self.address(node) + "/24 dev", INTERFACE),
            self._shape(name, INTERFACE),
            self._shape(self.switch, port),
            _ip(self.switch, "link set", port, "master", _BRIDGE, "up"),
            _ip(name, "link set", INTERFACE, "up"),
        ]

    def _shape(self, namespace: str, device: str) -> Command:
        return ["tc", "-n", namespace, "qdisc", "add", "dev", device, "root",
                "tbf", "rate", self.rate, "burst", _BURST,
                "latency", _LATENCY]


def _ip(namespace: str, *words: str) -> Command:
    return ["ip", "-n", namespace, *" ".join(words).split()]


def of_lab(lab_id: str, namespaces: Sequence[str]) -> List[str]:
    """Those of `namespaces` that lab `lab_id` made."""
    pattern = re.compile("%s%s(n[0-9]+|sw)" % (_PREFIX, re.escape(lab_id)))
    return [name for name in namespaces if pattern.fullmatch(name)]


def missing_rights(status: str) -> List[str]:
    """The capabilities that /proc/self/status, as `status`, lacks."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    effective = int(match.group(1), 16) if match else 0
    return [name for bit, name in _CAPABILITIES.items()
            if not effective >> bit & 1]


def check_rights() -> None:
    """Raises NetworkError if this process cannot make namespaces."""
    with open("/proc/self/status", encoding="utf-8") as stream:
        missing = missing_rights(stream.read())
    if missing:
        raise NetworkError(
            "--rate makes network namespaces, and this process has no right "
            "to: it lacks %s; run it as root, or leave --rate out"
            % " and ".join(missing))
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise NetworkError("--rate needs the program %s of the package "
                               "iproute2; tools/setup installs it" % program)


def _run(command: Command) -> str:
    # A session of its own: the terminal's Ctrl-C is the lab's to handle.
    done = subprocess.run(command, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True, check=False)
    if done.returncode != 0:
        raise NetworkError("%s: %s" % (
            " ".join(command), (done.stderr or done.stdout).strip()
            or "exit code %d" % done.returncode))
    return done.stdout


def namespaces() -> List[str]:
    """All named namespaces of this machine."""
    if shutil.which("ip") is None:
        return []
    return [line.split()[0] for line in _run(["ip", "netns", "list"])
            .splitlines() if line.strip()]


def apply(network: Network) -> None:
    for command in network.up():
        _run(command)


def remove(lab_id: str) -> None:
    """Ends what still runs in the lab's namespaces and removes them.
    Idempotent; goes on after an error and raises the first at the end."""
    errors = []
    names = of_lab(lab_id, namespaces())
    try:
        _end_processes(names)
    except NetworkError as error:
        errors.append(error)
    for name in names:
        try:
            _run(["ip", "netns", "del", name])
        except NetworkError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _end_processes(names: Sequence[str]) -> None:
    deadline = time.monotonic() + _GRACE_SECONDS
    number = signal.SIGTERM
    signalled = set()
    while True:
        pids = {int(pid) for name in names
                for pid in _run(["ip", "netns", "pids", name]).split()}
        if not pids:
            return
        if number == signal.SIGTERM and time.monotonic() >= deadline:
            number, signalled = signal.SIGKILL, set()
            deadline += _GRACE_SECONDS
        elif time.monotonic() >= deadline:
            raise NetworkError("processes %s do not end" % sorted(pids))
        for pid in pids - signalled:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        signalled |= pids
        time.sleep(0.05)


def sent_bytes(network: Network, node: int) -> int:
    """What the node's interface has sent so far, as the kernel counts."""
    shown = json.loads(_run(["ip", "-n", network.namespace(node), "-s", "-j",
                             "link", "show", "dev", INTERFACE]))
    return int(shown[0]["stats64"]["tx"]["bytes"])
