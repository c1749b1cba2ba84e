"""Launcher: prefixes, logs, pid files, restarts, teardown by id."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from ballast import launch

# Its process id in a line of a file each time.
_DIES_TWICE = ("echo $$ >> $BALLAST_LAB_DIR/%s; "
               '[ "${TORCHELASTIC_RESTART_COUNT:-0}" = 2 ] || kill -9 $$; '
               "sleep 1000")


def run(directory, scripts, **options):
    """Runs one shell script per rank; (code, output lines, launcher)."""
    output = io.BytesIO()
    with launch.Launcher(directory, output=output, **options) as launcher:
        for rank, script in enumerate(scripts):
            env = launch.worker_environment(
                rank=rank, world_size=len(scripts), local_rank=rank,
                local_world_size=len(scripts), node_rank=0,
                address="unix:///nowhere")
            launcher.start_worker(rank, ["/bin/sh", "-c", script], env)
        code = launcher.wait(timeout=60)
    return code, output.getvalue().decode().splitlines(), launcher


def is_running(pid):
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def poll_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class LauncherTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def test_prefixes_lines_and_keeps_logs(self):
        code, lines, _ = run(self.directory,
                             ["echo of $RANK of $WORLD_SIZE; printf tail"] * 2)
        self.assertEqual(code, 0)
        self.assertEqual(sorted(lines), [
            "[rank 0] of 0 of 2", "[rank 0] tail",
            "[rank 1] of 1 of 2", "[rank 1] tail"])
        with open(self.path("worker-1.log")) as log:
            self.assertEqual(log.read(), "of 1 of 2\ntail")

    def test_pid_files_live_as_long_as_the_process(self):
        code, lines, _ = run(
            self.directory,
            ["while ! [ -s $BALLAST_LAB_DIR/worker-0.pid ]; do :; done; "
             "[ $(cat $BALLAST_LAB_DIR/worker-0.pid) = $$ ]"])
        self.assertEqual((code, lines), (0, []))
        self.assertEqual(os.listdir(self.directory), ["worker-0.log"])

    def test_hold_says_who_dies_and_ends_with_a_signal(self):
        output = io.BytesIO()
        with launch.Launcher(self.directory, output=output) as launcher:
            launcher.start_daemon(0, ["/bin/false"])
            launcher.start_daemon(1, [
                "/bin/sh", "-c", "while kill -0 $(cat %s) 2>/dev/null; do :; "
                "done; kill -TERM $PPID; sleep 1000"
                % self.path("daemon-0.pid")])
            self.assertEqual(launcher.hold(), 128 + signal.SIGTERM)
        self.assertIn(b"daemon-0 exited with code 1", output.getvalue())
        self.assertFalse(is_running(launcher.daemons[1].pid))

    def test_one_failure_ends_the_others(self):  # I23
        code, lines, launcher = run(self.directory, ["exit 7", "sleep 1000"])
        self.assertEqual(code, 7)
        self.assertIn("worker-0 exited with code 7", lines[0])
        self.assertFalse(is_running(launcher.workers[1].pid))

    def test_restarts_a_dead_worker_within_the_limit(self):
        once = ('if [ "$TORCHELASTIC_RESTART_COUNT" != 1 ]; then '
                'kill -9 $$; fi; echo back')
        code, lines, launcher = run(self.directory, [once, "true"],
                                    max_restarts=1)
        self.assertEqual(code, 0)
        self.assertIn("[rank 0] back", lines)
        self.assertEqual(launcher.restarts, 1)

    def test_reports_the_signal_when_restarts_are_used_up(self):
        code, lines, _ = run(self.directory, ["kill -9 $$"], max_restarts=2)
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertEqual(sum("starting it again" in x for x in lines), 2)
        self.assertIn("ended by SIGKILL", lines[-1])

    def keep(self, keeper, limit, until):
        """A daemon that dies twice before it stays, beside a keeper, until the
        shell finds `until`: the launcher and what it says."""
        output = io.BytesIO()
        with launch.Launcher(self.directory, output=output,
                             max_daemon_restarts=limit) as launcher:
            launcher.start_keeper(0, ["/bin/sh", "-c", keeper])
            launcher.start_daemon(0, ["/bin/sh", "-c", _DIES_TWICE % "daemon"],
                                  is_kept=True)
            launcher.start_worker(0, [
                "/bin/sh", "-c", "cd $BALLAST_LAB_DIR; touch keeper daemon; "
                "until %s; do :; done" % until])
            code = launcher.wait(timeout=60)
        for child in launcher.keepers + launcher.daemons:
            self.assertFalse(is_running(child.pid))
        return code, output.getvalue().decode(), launcher

    def test_keepers_and_their_daemons_have_restarts_of_their_own(self):
        code, output, launcher = self.keep(
            _DIES_TWICE % "keeper", 2, "[ $(cat keeper daemon | wc -l) = 6 ]")
        self.assertEqual(code, 0, output)
        self.assertEqual([child.restarts for child in
                          launcher.keepers + launcher.daemons], [2, 2])
        self.assertEqual(launcher.restarts, 0)
        self.assertIn("daemon-0 was ended by SIGKILL; starting it again "
                      "(2 of 2)", output)

    def test_a_daemon_that_always_dies_is_given_up(self):
        # A process is there until the launcher has taken note of its end.
        code, output, _ = self.keep(
            "sleep 1000", 1,
            "set -- $(cat daemon); [ $# = 2 ] && ! kill -0 $2 2> /dev/null")
        self.assertEqual(code, 1, output)
        self.assertNotIn("2 of", output)

    def test_ends_grandchildren_of_a_dead_worker(self):  # I28
        script = "sleep 1000 & echo $!; exit 0"
        code, lines, _ = run(self.directory, [script])
        self.assertEqual(code, 0)
        pid = int(lines[0].split()[-1])
        self.assertTrue(poll_until(lambda: not is_running(pid)))

    def test_timeout_is_124(self):
        with launch.Launcher(self.directory, output=io.BytesIO()) as launcher:
            launcher.start_worker(0, ["sleep", "1000"])
            self.assertEqual(launcher.wait(timeout=0.3), 124)
        self.assertFalse(is_running(launcher.workers[0].pid))

    def test_stubborn_children_are_killed(self):
        output = io.BytesIO()
        with launch.Launcher(self.directory, output=output,
                             grace_seconds=0.3) as launcher:
            launcher.start_worker(
                0, ["/bin/sh", "-c",
                    "trap '' TERM; echo up; while :; do sleep 1; done"])
            while b"up" not in output.getvalue():
                launcher._pump(0.1)
        self.assertFalse(is_running(launcher.workers[0].pid))

    def test_a_dead_daemon_fails_the_run(self):
        output = io.BytesIO()
        with launch.Launcher(self.directory, output=output) as launcher:
            daemon = launcher.start_daemon(0, ["/bin/sh", "-c", "exit 3"])
            self.assertFalse(launch.wait_for_daemon(
                "unix://" + self.path("none.sock"), 30, daemon))
            launcher.start_worker(0, ["true"])
            self.assertEqual(launcher.wait(timeout=60), 1)
        self.assertIn(b"daemon-0 exited with code 3", output.getvalue())

    def start_launcher_process(self):
        code = textwrap.dedent("""
            import sys
            from ballast import launch
            with launch.Launcher(sys.argv[1]) as launcher:
                launcher.start_daemon(0, ["sleep", "1000"])
                launcher.start_worker(0, ["sleep", "1000"])
                print("up", flush=True)
                sys.exit(launcher.wait())
            """)
        process = subprocess.Popen(
            [sys.executable, "-c", code, self.directory],
            stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "up\n")
        process.stdout.close()
        pids = []
        for name in ("worker-0.pid", "daemon-0.pid"):
            with open(self.path(name)) as stream:
                pids.append(int(stream.read()))
        return process, pids

    def test_sigterm_ends_everything(self):  # I28
        process, pids = self.start_launcher_process()
        process.terminate()
        self.assertEqual(process.wait(30), 128 + signal.SIGTERM)
        self.assertEqual([is_running(pid) for pid in pids], [False, False])

    def test_children_die_with_a_killed_launcher(self):  # I28
        process, pids = self.start_launcher_process()
        process.kill()
        process.wait(30)
        self.assertTrue(poll_until(
            lambda: not any(is_running(pid) for pid in pids)))


if __name__ == "__main__":
    unittest.main()
