"""Connections that prove who they are and then do nothing: they are bounded
in number and time, on the handle socket and at gRPC's end, and keep no worker
out."""

import array
import os
import socket
import struct
import sys
import unittest

import lab

if not lab.missing():
    import numpy as np

# proto/handle_socket.h
_MAGIC, _HELLO, _WELCOME, _VERSION = 0x54534c42, 1, 2, 1


def idle_connection(address):
    """(handle socket, control socket) of a worker that only says Hello."""
    handle = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handle.settimeout(lab.PATIENCE)
    handle.connect(address[len("unix://"):])
    pidfd = os.pidfd_open(os.getpid())
    try:
        handle.sendmsg(
            [struct.pack("<IIII", _MAGIC, _HELLO, _VERSION, 0)],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd]))])
    finally:
        os.close(pidfd)
    data, rights, _, _ = handle.recvmsg(64, socket.CMSG_SPACE(4))
    magic, kind = struct.unpack_from("<II", data)
    assert (magic, kind) == (_MAGIC, _WELCOME), data
    control = socket.socket(fileno=array.array("i", rights[0][2])[0])
    control.settimeout(lab.PATIENCE)
    return handle, control


def is_hung_up(connection):
    """Both ends, as far as one sees without waiting."""
    for end in connection:
        end.setblocking(False)
        try:
            while end.recv(4096):
                pass
        except ConnectionError:
            pass
        except BlockingIOError:
            return False
    return True


class IdleTest(lab.TestCase):

    TENSORS = {} if lab.missing() else {"w": np.zeros(3, np.float32)}

    def sit(self, daemon, count):
        """`count` connections, open until the test ends."""
        connections = [idle_connection(daemon.address) for _ in range(count)]
        for connection in connections:
            for end in connection:
                self.addCleanup(end.close)
        return connections

    def check_a_job_runs(self, daemon):
        def worker(rank):
            with daemon.session(rank, 2, self.TENSORS) as s:
                return s.step().step

        self.assertEqual(lab.run_ranks(2, worker), [1, 1])

    def test_the_oldest_make_room(self):  # I26, I28
        daemon = self.start_daemon("limits.max_idle_connections=8",
                                   "limits.max_idle_connections_per_uid=4",
                                   http=True)
        self.check_a_job_runs(daemon)
        lab.poll(lambda: daemon.memfds() == 0, "the job is freed")
        before = daemon.fds()
        connections = self.sit(daemon, 100)
        lab.poll(lambda: all(is_hung_up(c) for c in connections[:96]),
                 "all but the newest are closed")
        # Four descriptors each: socket, pidfd, gRPC's and the one to end it.
        lab.poll(lambda: daemon.fds() <= before + 4 * 4 + 4,
                 "the daemon keeps nothing of the closed ones")
        self.check_a_job_runs(daemon)
        self.assertRegex(
            daemon.metrics(),
            r'ballast_idle_connections_closed_total\{cause="limit"\} '
            r'(9[6-9]|1\d\d)\n')

    def test_each_has_its_time(self):  # I26, I28
        daemon = self.start_daemon("limits.idle_connection_timeout=1s",
                                   http=True)
        before = daemon.fds()
        connections = self.sit(daemon, 20)
        with daemon.session(0, 1, self.TENSORS) as s:
            lab.poll(lambda: all(is_hung_up(c) for c in connections),
                     "all idle connections are closed")
            self.assertEqual(s.step().step, 1)  # an attached one is not idle
        lab.poll(lambda: daemon.fds() <= before,
                 "the daemon keeps nothing of them")
        self.assertRegex(
            daemon.metrics(),
            r'ballast_idle_connections_closed_total\{cause="timeout"\} 2\d\n')
        lab.poll(lambda: "ballast_idle_connections 0\n" in daemon.metrics(),
                 "none is counted as open")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
