"""free_port: what it gives is nobody else's."""

import socket
import subprocess
import sys
import unittest
from unittest import mock

from ballast import _ports, errors, launch

_OTHER_PROCESS = """
import sys
from ballast import _ports
if len(sys.argv) > 1:
    only = range(int(sys.argv[1]), int(sys.argv[1]) + 1)
    _ports._outside_the_kernels_range = lambda: only
print(_ports.free_port())
"""


class PortsTest(unittest.TestCase):

    def other_process(self, *only):
        return subprocess.run(
            [sys.executable, "-c", _OTHER_PROCESS, *map(str, only)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
            check=False)

    def only(self, port):
        return mock.patch.object(_ports, "_outside_the_kernels_range",
                                 lambda: range(port, port + 1))

    def test_the_kernel_gives_it_to_nobody(self):
        with open(_ports._KERNELS, encoding="ascii") as stream:
            first, last = map(int, stream.read().split())
        given = [launch.free_port() for _ in range(50)]
        self.assertEqual(len(set(given)), len(given))
        for port in given:
            self.assertFalse(first <= port <= last, port)
            self.assertGreaterEqual(port, 1024)

    def test_no_other_process_is_given_it(self):
        port = launch.free_port()
        done = self.other_process(port)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("no TCP port of 127.0.0.1 between %d and %d is free"
                      % (port, port), done.stdout)
        with self.only(port), self.assertRaises(errors.ResourceExhausted):
            launch.free_port()
        # The control: there are others.
        self.assertEqual(self.other_process().returncode, 0)

    def test_one_on_which_somebody_listens_is_passed_over(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            with self.only(server.getsockname()[1]), \
                    self.assertRaises(errors.ResourceExhausted):
                launch.free_port()


if __name__ == "__main__":
    unittest.main()
