"""python3 -m ballast.run, with a daemon played by a few lines of Python."""

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

_DAEMON = """\
#!%s
import os, re, signal, socket, sys
text = open(sys.argv[2]).read()
path = re.search(r'workers: "unix://(.*)"', text).group(1)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.path.exists(path): os.unlink(path)
listener.bind(path)
listener.listen()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    listener.accept()[0].close()
""" % sys.executable

_SCRIPT = """\
import os, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
         "OMP_NUM_THREADS", "BALLAST_JOB", "TORCHELASTIC_RUN_ID"]
print(sys.argv[1:], [os.environ[n] for n in names], flush=True)
assert os.path.exists(os.environ["BALLAST_ADDRESS"][len("unix://"):])
if "die" in sys.argv and "TORCHELASTIC_RESTART_COUNT" not in os.environ:
    os.kill(os.getpid(), 9)
"""


class RunTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.daemon = self.write("ballastd", _DAEMON)
        os.chmod(self.daemon, 0o755)
        self.script = self.write("script.py", textwrap.dedent(_SCRIPT))

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w") as stream:
            stream.write(text)
        return path

    def run_it(self, *arguments, **environment):
        env = dict(os.environ, BALLASTD=self.daemon, BALLAST_JOB="j",
                   BALLAST_LAB_DIR=os.path.join(self.directory, "lab"))
        env.pop("BALLAST_ADDRESS", None)
        env.update(environment)
        return subprocess.run(
            [sys.executable, "-m", "ballast.run", *arguments], env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=60, check=False)

    def test_starts_a_daemon_and_workers(self):
        done = self.run_it("--workers", "2", self.script, "--a", "b")
        self.assertEqual(done.returncode, 0, done.stdout)
        for rank in "01":
            self.assertIn(
                "[rank %s] ['--a', 'b'] ['%s', '2', '%s', '2', '0', '1', "
                "'j', 'j']" % (rank, rank, rank), done.stdout)
        self.assertIn("/metrics", done.stdout)
        left = os.listdir(os.path.join(self.directory, "lab"))
        self.assertFalse([n for n in left if n.endswith(".pid")])  # I28

    def test_starts_it_where_the_address_says(self):
        path = os.path.join(self.directory, "own.sock")
        done = self.run_it(self.script, BALLAST_ADDRESS="unix://" + path)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("daemon at unix://" + path, done.stdout)

    def test_restarts_within_the_limit(self):
        done = self.run_it("--max-restarts", "1", self.script, "die")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("starting it again (1 of 1)", done.stdout)
        done = self.run_it(self.script, "die")
        self.assertEqual(done.returncode, 137)

    def test_says_which_program_is_missing(self):
        done = self.run_it(self.script, BALLASTD="/nonexistent")
        self.assertEqual(done.returncode, 1)
        self.assertIn("BALLASTD=/nonexistent is no program", done.stdout)

    def test_says_where_a_broken_daemon_logged(self):
        broken = self.write("broken", "#!/bin/sh\necho no; exit 1\n")
        os.chmod(broken, 0o755)
        done = self.run_it(self.script, BALLASTD=broken)
        self.assertEqual(done.returncode, 1)
        self.assertIn("daemon-0.log", done.stdout)

    def test_bad_arguments(self):
        self.assertEqual(self.run_it("--workers", "0", "x.py").returncode, 2)
        self.assertEqual(self.run_it().returncode, 2)


if __name__ == "__main__":
    unittest.main()
