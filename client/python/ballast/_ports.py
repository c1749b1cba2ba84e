"""TCP ports of this machine for processes that are started."""

import random
import socket

from . import errors

_KERNELS = "/proc/sys/net/ipv4/ip_local_port_range"
_FIRST = 10000  # well-known servers are below


def _outside_the_kernels_range() -> range:
    """The wider of the ranges below and above; Linux's own if unknown."""
    first, last = 32768, 60999
    try:
        with open(_KERNELS, encoding="ascii") as stream:
            first, last = map(int, stream.read().split())
    except OSError:
        pass
    below, above = range(_FIRST, first), range(last + 1, 65536)
    return max(below, above, key=len) or range(first, last + 1)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port on which nobody listens. It is none of those that the kernel
    gives to connections and to whoever asks for any, and as long as this
    process lives no other one gets it from here: so it is free when the
    process starts that it is for, and when that one is started again.
    ResourceExhausted: there is none."""
    ports = _outside_the_kernels_range()
    start = random.SystemRandom().randrange(len(ports))
    for i in range(len(ports)):
        port = ports[(start + i) % len(ports)]
        # An abstract name lasts as long as its descriptor, which nobody
        # closes before the process ends.
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind("\0ballast-port-%d" % port)
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
                sock.bind((host, port))
        except OSError:
            claim.close()
            continue
        claim.detach()
        return port
    raise errors.ResourceExhausted(
        "no TCP port of %s between %d and %d is free"
        % (host, ports[0], ports[-1]))
