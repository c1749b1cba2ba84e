"""Daemons that are killed, stopped and started again while a job runs: its
workers only see a pause, and no bit changes (I20)."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import kept
import lab

if not lab.missing():
    import numpy as np
    import ballast
    import job

_ADAMW = {"name": "adamw", "lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8,
          "weight_decay": 0.1}

# One rank of the reference job; its last line is a digest of what it ends with.
_WORKER = """
import hashlib, os, sys, time
import ballast, job
steps, pause, exchange = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
s = ballast.Session(tensors=job.initial(), bucket_bytes=8192, timeout=120,
                    optimizer=dict(name="adamw", lr=0.01, betas=(0.9, 0.95),
                                   eps=1e-8, weight_decay=0.1),
                    gradient_clipping=1.0, exchange=exchange)
print("open", s.open_step, s.cursor.decode(), flush=True)
for step in s.steps(steps):
    job.fill(s, step)
    s.param_groups[0]["lr"] = job.learning_rate(step)
    s.push("head")
    job.look(s, pause)
    result = s.step(cursor=b"after %d" % step)
    print("step", step, flush=True)
assert s.cursor == b"after %d" % steps, s.cursor
assert "summary" in s.stats(), s.stats()
start = time.monotonic()
try:
    s.save("x")
except ballast.FailedPrecondition as error:  # the daemon's word, at once
    assert "snapshots.directory" in str(error), error
assert time.monotonic() - start < 60
digest = hashlib.sha256(job.look(s))
digest.update(repr((result.step, result.grad_norm, result.lr)).encode())
s.close()
print("digest", digest.hexdigest(), flush=True)
"""


class RestartTest(kept.KeptCase):

    def start_job(self, daemon, steps, pause=0.0, exchange="exact", world=2):
        return [self.start_worker(daemon, _WORKER, steps, pause, exchange,
                                  rank=rank, world=world)
                for rank in range(world)]

    def undisturbed(self, steps, exchange="exact"):
        return self.digest_of(
            self.start_job(self.start_daemon(), steps, exchange=exchange))

    def check_restarts(self, number, times, exchange="exact", steps=150):
        """The daemon gets the signal again and again during a run."""
        expected = self.undisturbed(steps, exchange)
        daemon, keeper = self.start_kept()
        fds = daemon.fds()
        workers = self.start_job(daemon, steps, 0.02, exchange)
        pids = [worker.pid for worker in workers]
        for worker in workers:
            worker.expect("step 1")
        generator = random.Random(exchange)
        done = 0
        while done < times and all(w.process.poll() is None for w in workers):
            time.sleep(generator.uniform(0.0, 0.15))
            daemon.signal(number)
            code = daemon.wait()
            self.assertEqual(code, 0 if number == signal.SIGTERM else 137)
            daemon.start()
            done += 1
        print("restarts: %d" % done, file=sys.stderr)
        self.assertEqual(self.digest_of(workers), expected, daemon.log())
        self.assertGreater(done, times // 2)
        self.assertEqual([worker.pid for worker in workers], pids)
        # Nothing is left behind (I28).
        lab.poll(lambda: daemon.memfds() == 0, "the daemon's memory is freed")
        lab.poll(lambda: keeper.memfds() == 0, "the keeper's memory is freed")
        lab.poll(lambda: daemon.fds() <= fds, "descriptors are closed")

    def test_killed_at_any_moment(self):
        self.check_restarts(signal.SIGKILL, 20, steps=300)

    def test_killed_with_zeropp(self):
        self.check_restarts(signal.SIGKILL, 6, "zeropp")

    def test_killed_with_delta4(self):
        self.check_restarts(signal.SIGKILL, 6, "delta4")

    def test_killed_where_weights_are_not_resident(self):
        """Also the bits of the job where they are."""
        none = "exact secondary_partition=none"
        self.assertEqual(self.undisturbed(20, none), self.undisturbed(20))
        self.check_restarts(signal.SIGKILL, 8, none)

    def test_stopped_by_sigterm(self):
        self.check_restarts(signal.SIGTERM, 6)

    def test_a_worker_that_dies_meanwhile(self):
        expected = self.undisturbed(6)
        daemon, _ = self.start_kept()
        survivor, victim = self.start_job(daemon, 6, 0.1)
        victim.expect("step 2")
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        victim.kill()
        daemon.start()
        lab.poll(lambda: "worker left" in daemon.log(), "its end is noticed")
        replacement = self.start_worker(daemon, _WORKER, 6, 0, "exact",
                                        rank=1, world=2)
        self.assertIn("after", replacement.expect("open"))
        self.assertEqual(self.digest_of([survivor, replacement]), expected)

    def test_a_worker_that_was_missing_is_replaced_later(self):
        expected = self.undisturbed(6)
        daemon, _ = self.start_kept()
        survivor, victim = self.start_job(daemon, 6, 0.1)
        victim.expect("step 2")
        victim.kill()
        lab.poll(lambda: "worker left" in daemon.log(), "its end is noticed")
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        daemon.start()
        replacement = self.start_worker(daemon, _WORKER, 6, 0, "exact",
                                        rank=1, world=2)
        self.assertEqual(self.digest_of([survivor, replacement]), expected)

    def test_ranks_that_closed_stay_closed(self):
        daemon, keeper = self.start_kept()

        def other():
            with daemon.session(1, 2, job.initial(), optimizer=_ADAMW) as s:
                job.train(s, 1)

        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        with daemon.session(0, 2, job.initial(), optimizer=_ADAMW) as first:
            job.train(first, 1)
            thread.join(lab.PATIENCE)
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            daemon.start()
            workers = daemon.control("job", "job")["workers"]
            self.assertEqual([w["state"] for w in workers],
                             ["ready", "closed"])
        lab.poll(lambda: keeper.memfds() == 0, "the job has ended")

    def test_a_second_daemon_is_refused(self):
        daemon, keeper = self.start_kept()
        for command, message in (
                (daemon.command, "a running process"),
                (daemon.command + [
                    "--set", "listen.workers=unix://%s/b" % daemon.directory,
                    "--set", "listen.admin=unix://%s/c" % daemon.directory],
                 "a daemon (pid %d) is connected" % daemon.pid)):
            done = subprocess.run(command, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True,
                                  timeout=lab.PATIENCE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(message, done.stdout)
        self.assertEqual(self.digest_of(self.start_job(daemon, 2)),
                         self.undisturbed(2))
        del keeper

    def test_a_keeper_that_dies_is_replaced(self):
        expected = self.undisturbed(40)
        daemon, keeper = self.start_kept(http=True)
        workers = self.start_job(daemon, 40, 0.1)
        workers[0].expect("step 2")
        keeper.end()
        lab.poll(lambda: "ballast_keeper_connected 0" in daemon.metrics(),
                 "the daemon says so")
        keeper = kept.Keeper(daemon.directory)
        self.addCleanup(keeper.end)
        lab.poll(lambda: "ballast_keeper_connected 1" in daemon.metrics(),
                 "the daemon has found it")
        lab.poll(lambda: keeper.memfds() > 0, "it has the job")
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        daemon.start()
        self.assertEqual(self.digest_of(workers), expected)
        self.assertIn('ballast_jobs_taken_over_total{outcome="ok"} 1',
                      daemon.metrics())

    def test_what_the_keeper_has_no_room_for_is_not_kept(self):
        daemon, keeper = self.start_kept(http=True, keeper_fds=38)
        with open(keeper.log) as log:
            self.assertIn("may hold 6 descriptors, not 65536: RLIMIT_NOFILE "
                          "is 38", log.read())
        workers = self.start_job(daemon, 1000, 0.05)
        workers[0].expect("step 2")
        [summary] = daemon.control("status")["jobs"]
        self.assertIn("of 6 that it may", summary["not_kept"])
        lines = [line for line in daemon.log().splitlines()
                 if "not kept" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("job=job", lines[0])
        refused = [line for line in daemon.metrics().splitlines()
                   if line.startswith("ballast_keeper_refusals_total")]
        self.assertGreater(float(refused[0].split()[-1]), 1)
        # It is not left to the next daemon, which would miss some of it.
        daemon.signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(), 0)
        for worker in workers:
            code, output = worker.finish()
            self.assertNotEqual(code, 0)
            self.assertIn("daemon is draining", output)
        lab.poll(lambda: keeper.memfds() == 0, "the keeper's memory is freed")
        daemon.start()
        self.assertEqual(daemon.control("status")["jobs"], [])

    def test_a_directory_that_cannot_be_read_ends_no_job(self):
        expected = self.undisturbed(150)
        scratch = self.enterContext(tempfile.TemporaryDirectory())
        store = os.path.join(scratch, "store")
        os.mkdir(store)
        daemon, _ = self.start_kept("snapshots.directory=" + store, http=True)
        workers = self.start_job(daemon, 150, 0.05)
        self.kill_in_step(daemon, workers)
        os.rmdir(store)  # not mounted
        daemon.start()
        workers[0].expect("step 5")
        self.assertIn("ballast_snapshot_directory_readable 0\n",
                      daemon.metrics())
        status = daemon.control("status")
        self.assertIn("No such file", status["snapshots_error"])
        self.assertIn("snapshots.directory cannot be read", daemon.log())
        save = ["checkpoint", "save", "job", "mine"]
        self.assertIsNone(daemon.control(*save))
        with self.assertRaisesRegex(ballast.FailedPrecondition,
                                    "snapshots.directory cannot be read"):
            daemon.session(0, 1, job.initial(), job="new", resume="auto")
        os.mkdir(store)
        lab.poll(lambda: "readable 1\n" in daemon.metrics(), "it is read")
        self.assertIsNotNone(daemon.control(*save))
        self.assertIn("mine", os.listdir(store + "/job"))
        self.assertEqual(self.digest_of(workers), expected, daemon.log())

    def test_both_dead_is_the_end(self):  # I23
        daemon, keeper = self.start_kept()
        worker = self.start_job(daemon, 1000, 0.1, world=1)[0]
        worker.expect("step 1")
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        time.sleep(0.3)
        self.assertIsNone(worker.process.poll())  # it waits
        keeper.end()
        code, output = worker.finish()
        self.assertNotEqual(code, 0)
        self.assertIn("went away", output)

    def kill_in_step(self, daemon, workers, step=2):
        for worker in workers:
            worker.expect("step %d" % step)
        daemon.signal(signal.SIGKILL)
        daemon.wait()

    def refusal(self, daemon, *options):
        """What a daemon says that does not start."""
        done = subprocess.run(daemon.command + list(options),
                              stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=lab.PATIENCE)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("stays with the keeper", done.stdout)
        return done.stdout

    def write_to_record(self, keeper, offset, value):
        """One byte of the job's record; what was there."""
        folder = "/proc/%d/fd/" % keeper.process.pid
        paths = [folder + fd for fd in os.listdir(folder)]
        [path] = [p for p in paths
                  if os.readlink(p).endswith("record (deleted)")]
        with open(path, "r+b", buffering=0) as stream:
            stream.seek(offset)
            [before] = stream.read(1)
            stream.seek(offset)
            stream.write(bytes([value]))
        return before

    def test_any_number_of_threads_goes_on(self):  # I20
        expected = self.undisturbed(60)
        daemon, _ = self.start_kept("compute.threads=1")
        workers = self.start_job(daemon, 60, 0.05)
        for step, threads in enumerate((3, 2, 5), start=2):
            self.kill_in_step(daemon, workers, step)
            daemon.command += ["--set", "compute.threads=%d" % threads]
            daemon.start()
            lab.poll(lambda: "job taken over" in daemon.log(), "it goes on")
        self.assertEqual(self.digest_of(workers), expected, daemon.log())

    def test_a_setting_that_is_too_small_loses_nothing(self):
        expected = self.undisturbed(20)
        daemon, keeper = self.start_kept()
        workers = self.start_job(daemon, 20, 0.05)
        self.kill_in_step(daemon, workers)
        held = keeper.memfds()
        said = self.refusal(daemon, "--set", "limits.max_total_bytes=4MiB")
        self.assertIn("limits.max_total_bytes = 4194304: raise it", said)
        self.assertEqual(keeper.memfds(), held)
        daemon.start()
        self.assertEqual(self.digest_of(workers), expected, daemon.log())

    def test_another_format_loses_nothing(self):
        expected = self.undisturbed(20)
        daemon, keeper = self.start_kept()
        workers = self.start_job(daemon, 20, 0.05)
        self.kill_in_step(daemon, workers)
        version = self.write_to_record(keeper, 8, 99)
        self.assertIn("its record is kept in format 99", self.refusal(daemon))
        self.write_to_record(keeper, 8, version)
        daemon.start()
        self.assertEqual(self.digest_of(workers), expected, daemon.log())

    def check_end(self, daemon, keeper, workers, reason):
        for worker in workers:
            code, output = worker.finish()
            self.assertNotEqual(code, 0)
            self.assertIn('could not go on with job "job": ' + reason, output)
        self.assertIn('reason="%s" workers_told=2' % reason, daemon.log())
        lab.poll(lambda: keeper.memfds() == 0, "the memory is freed")

    def test_what_is_damaged_ends_with_the_reason(self):
        daemon, keeper = self.start_kept()
        workers = self.start_job(daemon, 1000, 0.1)
        self.kill_in_step(daemon, workers)
        self.write_to_record(keeper, 0, 1)
        daemon.start()
        self.check_end(daemon, keeper, workers, "this is no job's record")

    def test_a_job_is_given_up(self):
        daemon, keeper = self.start_kept()
        workers = self.start_job(daemon, 1000, 0.1)
        self.kill_in_step(daemon, workers)
        daemon.command += ["--drop-job=job", "--drop-job=other"]
        daemon.start()
        self.check_end(daemon, keeper, workers, "--drop-job names it")
        self.assertIn('--drop-job: the keeper has no job "other"', daemon.log())

    def test_a_daemon_may_start_its_keeper(self):
        daemon = self.start_daemon()
        daemon.signal(signal.SIGTERM)
        daemon.wait()
        socket = daemon.directory + "/own.sock"
        daemon.command += ["--set", "keeper.socket=" + socket,
                           "--set", "keeper.program=" + kept.KEEPER]
        daemon.start()
        expected = self.undisturbed(20)
        workers = self.start_job(daemon, 20, 0.05)
        workers[0].expect("step 2")
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        daemon.start()
        self.assertEqual(self.digest_of(workers), expected)
        # It goes with the last daemon, which leaves nothing.
        daemon.signal(signal.SIGTERM)
        daemon.wait()
        lab.poll(lambda: not os.path.exists(socket), "the keeper has ended")


if __name__ == "__main__":
    unittest.main()
