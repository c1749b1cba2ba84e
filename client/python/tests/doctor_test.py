"""The doctor finds what is wrong and says how to fix it."""

import contextlib
import io
import json
import os
import socket
import tempfile
import unittest
from unittest import mock

from ballast import doctor


class DoctorTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.path = os.path.join(scratch.name, "b.sock")

    def examine(self, **env):
        env = {k: v for k, v in env.items() if v is not None}
        with mock.patch.dict(os.environ, dict(
                env, PATH=os.environ["PATH"]), clear=True):
            return {f.check: f for f in doctor.examine()}

    def test_a_daemon_that_answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(self.path)
            server.listen()
            found = self.examine(BALLAST_ADDRESS="unix://" + self.path)
        self.assertEqual(found["socket"].state, "ok")
        self.assertEqual(found["ranks"].state, "ok")
        self.assertEqual(found["coordinator"].state, "ok")

    def test_no_daemon(self):
        found = self.examine(BALLAST_ADDRESS="unix://" + self.path)
        self.assertEqual(found["socket"].state, "wrong")
        self.assertIn("start ballastd", found["socket"].fix)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(self.path)
        found = self.examine(BALLAST_ADDRESS="unix://" + self.path)
        self.assertIn("nobody answers", found["socket"].text)
        with open(os.path.join(self.directory, "file"), "w"):
            pass
        found = self.examine(BALLAST_ADDRESS=self.directory + "/file")
        self.assertIn("is no socket", found["socket"].text)

    def test_wrong_variables(self):
        found = self.examine(RANK="3", WORLD_SIZE="2",
                             BALLAST_ADDRESS="nowhere",
                             BALLAST_TOKEN_FILE=self.path,
                             BALLAST_JOB="a b")
        self.assertEqual(
            {check for check, f in found.items() if f.state == "wrong"} &
            {"ranks", "socket", "token"}, {"ranks", "socket", "token"})
        self.assertEqual(found["job"].state, "warning")

    def test_a_coordinator_that_is_not_there(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % taken.getsockname()[1]
        two = dict(RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
        found = self.examine(BALLAST_COORDINATOR=address, **two)
        self.assertEqual(found["coordinator"].state, "wrong")
        self.assertIn("listen.peer", found["coordinator"].fix)
        found = self.examine(**two)
        self.assertEqual(found["coordinator"].state, "warning")

    def test_a_library_that_is_not_there(self):
        with mock.patch("ballast._library._loaded", None):
            found = self.examine(BALLAST_LIBRARY=self.path)
        self.assertEqual(found["library"].state, "wrong")
        self.assertIn("BALLAST_LIBRARY", found["library"].fix)

    def test_a_check_that_breaks_is_a_finding(self):
        def broken():
            raise KeyError("x")
        with mock.patch.object(doctor, "CHECKS", [broken]):
            self.assertEqual(doctor.examine()[0].state, "warning")

    def test_exit_code_and_json(self):
        for state, code in (("ok", 0), ("warning", 0), ("wrong", 1)):
            finding = doctor.Finding("a", state, "text", "fix it")
            out = io.StringIO()
            with mock.patch.object(doctor, "CHECKS", [lambda f=finding: f]), \
                    contextlib.redirect_stdout(out):
                self.assertEqual(doctor.main(["--json"]), code)
                self.assertEqual(json.loads(out.getvalue())[0]["state"],
                                 state)
                doctor.main([])
            self.assertEqual("-> fix it" in out.getvalue(), state != "ok")


if __name__ == "__main__":
    unittest.main()
