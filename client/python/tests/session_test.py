"""Session over a library that is played by Python: loop, results, ends."""

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
import weakref
from unittest import mock

import numpy as np

import ballast
from ballast import _library, errors


class FakeHandle:
    """Stands where libballast.so would: one rank, instant commits."""

    last = None

    def __init__(self, options, tensors):
        self.options = json.loads(options)
        self.tensors = [(t.name.decode(), t.dtype, t.frozen, t.group,
                         t.initial_bytes) for t in tensors]
        self.sizes = []
        self.memory = []
        for t in tensors:
            count = int(np.prod([t.shape[d] for d in range(t.ndim)], dtype=int))
            size = count * (4 if t.dtype == 1 else 2)
            buffer = ctypes.create_string_buffer(max(size, 1))
            if t.initial:
                ctypes.memmove(buffer, t.initial, size)
            self.memory.append((buffer, ctypes.create_string_buffer(
                max(size, 1))))
            self.sizes.append(size)
        self.open_step = 1
        self.failures = []
        self.calls = []
        self.committed = b""
        self.resumed = 0
        self.source = ""
        self.held = None  # names' indexes; None: all are resident
        if "secondary_partition=none" in self.options["exchange"]:
            self.held = set()
        FakeHandle.last = self

    def info(self):
        return _library.InfoStruct(open_step=self.open_step,
                                   weight_version=self.open_step - 1,
                                   resumed=self.resumed)

    def params(self, i):
        return ctypes.addressof(self.memory[i][0]), self.sizes[i]

    def grads(self, i):
        return ctypes.addressof(self.memory[i][1]), self.sizes[i]

    def gathers_weights(self):
        return self.held is not None

    def is_held(self, i):
        return self.held is None or i in self.held

    def gather(self, tensors, wait, timeout):
        self.calls.append(("gather", tensors, wait, timeout))
        self.held.update(tensors)

    def give_back(self, tensors):
        self.calls.append(("give_back", tensors))
        self.held.difference_update(tensors)

    def group(self, index):
        return _library.GroupStruct(lr=7.0)

    def set_group(self, index, group):
        self.calls.append(("group", index, group.lr))
        self.norms = getattr(self, "norms", []) + [group.max_norm]

    def push(self, tensor):
        self.calls.append(("push", tensor))

    def step(self, cursor, wait, timeout):
        if self.failures:
            raise self.failures.pop(0)
        self.calls.append(("step", cursor, wait, timeout))
        self.committed = cursor
        self.open_step += 1
        return _library.ResultStruct(
            step=self.open_step - 1, skipped=1, grad_norm=2.0,
            gradients=_library.PathQualityStruct(
                sampled=7, relative_error=0.25, clipped_share=0.0,
                residual_norm=float("nan"), num_wider=2),
            weights=_library.PathQualityStruct(
                relative_error=float("nan"), clipped_share=float("nan"),
                residual_norm=float("nan")))

    def cursor(self):
        return self.committed

    def resumed_from(self):
        return self.source

    def wait(self, tensor, timeout):
        self.calls.append(("wait", tensor))

    def save(self, name, timeout):
        self.calls.append(("save", name, timeout))
        return "j/" + (name or "step-00000001")

    def stats(self, timeout):
        return '{"name": "j"}'

    def detach(self, timeout):
        self.calls.append(("detach",))

    def close(self, timeout):
        self.calls.append(("close",))


TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3),
           "b": (np.array([1, 2], np.uint16), "bfloat16"),
           "none": np.zeros((0, 3), np.float16)}


def session(**options):
    arguments = dict(job="j", tensors=TENSORS,
                     optimizer={"name": "sgd", "lr": 0.1})
    arguments.update(options)
    return ballast.Session(**arguments)


class SessionTest(unittest.TestCase):

    def setUp(self):
        patches = (mock.patch.object(_library, "Handle", FakeHandle),
                   mock.patch.dict(os.environ, {}, clear=True))
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)

    def test_describes_the_job(self):
        s = session(trainable=["w", "none"], timeout=5,
                    param_groups=[{"match": "b", "lr": 1}])
        fake = FakeHandle.last
        self.assertEqual(fake.tensors, [("w", 1, 0, 0, 24), ("b", 2, 1, 1, 4),
                                        ("none", 3, 0, 0, 0)])
        self.assertEqual(fake.options["optimizer"]["groups"][1]["lr"], 1.0)
        self.assertEqual(fake.options["open_timeout"], 5.0)
        self.assertEqual(s.job, "j")

    def test_only_rank_0_hands_over_values(self):
        session(rank=1, world_size=2)
        self.assertEqual([t[4] for t in FakeHandle.last.tensors], [0, 0, 0])

    def test_views_show_shared_memory(self):
        s = session(trainable="w")
        np.testing.assert_array_equal(s.params["w"], TENSORS["w"])
        self.assertEqual(s.params["b"].dtype, np.uint16)
        self.assertEqual(s.params["none"].shape, (0, 3))
        with self.assertRaises(ValueError):
            s.params["w"][0, 0] = 1
        with self.assertRaises(ValueError):
            s.params["w"].flags.writeable = True
        s.grads["w"][:] = 3
        self.assertEqual(
            np.frombuffer(FakeHandle.last.memory[0][1], np.float32, 6).sum(),
            18)
        with self.assertRaises(errors.InvalidArgument) as caught:
            s.grads["b"]
        self.assertIn("frozen", str(caught.exception))
        with self.assertRaises(KeyError):
            s.params["x"]
        self.assertNotIn("x", s.params)

    def test_views_outlive_the_session(self):
        s = session()
        handle = weakref.ref(FakeHandle.last)
        FakeHandle.last = None
        view = s.params["w"][1:]
        s.close()
        del s
        gc.collect()
        np.testing.assert_array_equal(view, TENSORS["w"][1:])
        self.assertIsNotNone(handle())
        del view
        gc.collect()
        self.assertIsNone(handle())

    def test_a_dropped_session_gives_up_its_lease(self):  # I28
        s = session()
        fake, view = FakeHandle.last, s.params["w"][1:]
        FakeHandle.last = None
        calls = fake.calls
        del s, fake
        gc.collect()
        self.assertEqual(calls, [("detach",)])
        np.testing.assert_array_equal(view, TENSORS["w"][1:])
        s = session()
        handle, calls = weakref.ref(FakeHandle.last), FakeHandle.last.calls
        FakeHandle.last = None
        del s
        gc.collect()
        self.assertIsNone(handle())  # which ends it, without a copy
        self.assertEqual(calls, [])

    def test_step_sends_groups_and_cursor(self):
        s = session()
        s.param_groups[0]["lr"] = 0.5
        result = s.step(cursor=b"here", timeout=3)
        self.assertEqual(FakeHandle.last.calls,
                         [("group", 0, 0.5), ("step", b"here", True, 3.0)])
        self.assertEqual(s.cursor, b"here")
        self.assertTrue(result.skipped)
        self.assertEqual(result.as_dict()["stage_seconds"]["vote"], 0.0)
        self.assertEqual(result.quality["gradients"].relative_error, 0.25)
        # What was not measured is not 0, and JSON has no NaN.
        told = json.loads(json.dumps(result.as_dict(), allow_nan=False))
        self.assertEqual(told["quality"]["gradients"], {
            "sampled": 7, "relative_error": 0.25, "clipped_share": 0.0,
            "residual_norm": None, "num_wider": 2})
        self.assertEqual(told["quality"]["weights"], {
            "sampled": 0, "relative_error": None, "clipped_share": None,
            "residual_norm": None, "num_wider": 0})

    def test_steps_repeat_after_aborted(self):
        s = session()
        FakeHandle.last.failures = [errors.Aborted("gone", 1)]
        seen = []
        for step in s.steps(3):
            seen.append(step)
            try:
                s.step()
            except ballast.Aborted as error:
                self.assertEqual(error.resume_step, step)
        self.assertEqual(seen, [1, 1, 2, 3])

    def test_steps_want_a_step_each_turn(self):
        s = session()
        with self.assertRaises(errors.FailedPrecondition):
            for _ in s.steps(3):
                pass

    def test_cursor_is_bounded_bytes(self):
        s = session()
        for bad in ("text", None, 3, b"x" * 65537):
            with self.assertRaises(errors.InvalidArgument):
                s.step(cursor=bad)
        s.step(cursor=b"x" * 65536)

    def test_names_are_checked(self):
        s = session()
        for call in (s.push, s.wait):
            with self.assertRaises(errors.InvalidArgument) as caught:
                call("ww")
            self.assertIn("nearest is w", str(caught.exception))
        for call in (lambda: s.push([]), lambda: s.wait({}),
                     lambda: s.params[[1]], lambda: s.grads[{}],
                     lambda: s.steps("a"), lambda: s.steps(None)):
            with self.assertRaises(errors.InvalidArgument):
                call()
        self.assertNotIn([1], s.params)
        s.wait()
        self.assertEqual(FakeHandle.last.calls[-1][1], _library.ALL_TENSORS)

    def test_resumed_jobs_bring_their_hyperparameters(self):
        with mock.patch.object(FakeHandle, "info", lambda self:
                               _library.InfoStruct(open_step=8, resumed=1)):
            with mock.patch("sys.stderr") as stderr:
                s = session()
        self.assertTrue(s.resumed)
        self.assertEqual(s.param_groups[0]["lr"], 7.0)
        said = "".join(call[0][0] for call in stderr.write.call_args_list)
        self.assertIn("job j goes on at step 8", said)
        self.assertIn("; kept lr 7.0 (given 0.1) of group 0", said)
        self.assertNotIn("momentum", said)  # as given

    def test_resumed_jobs_say_what_they_go_on_from(self):
        with mock.patch.object(FakeHandle, "info", lambda self:
                               _library.InfoStruct(open_step=8, resumed=1)), \
                mock.patch.object(FakeHandle, "resumed_from", lambda self:
                                  "replica of step 7 held by nodes 0 and 2"), \
                mock.patch("sys.stderr") as stderr:
            session()
        said = "".join(call[0][0] for call in stderr.write.call_args_list)
        self.assertIn("goes on at step 8 (rank 0) from the replica of step 7 "
                      "held by nodes 0 and 2; initial", said)

    def test_state_dict_is_a_copy_that_tensors_takes(self):
        s = session()
        state = s.state_dict()
        s.close()
        again = session(tensors=state)
        np.testing.assert_array_equal(again.params["w"], TENSORS["w"])
        self.assertEqual(state["b"][1], "bfloat16")
        state["w"][:] = 0
        np.testing.assert_array_equal(s.params["w"], TENSORS["w"])

    def test_with_closes_or_detaches(self):
        with session():
            fake = FakeHandle.last
        self.assertEqual(fake.calls, [("close",)])
        with self.assertRaises(RuntimeError):
            with session():
                fake = FakeHandle.last
                raise RuntimeError
        self.assertEqual(fake.calls, [("detach",)])

    def test_closing_twice_is_nothing(self):
        s = session()
        s.close()
        s.close()
        s.detach()
        self.assertEqual(FakeHandle.last.calls, [("close",)])

    def test_saves_and_says_how_to_load(self):
        s = session(timeout=7.0)
        self.assertEqual(s.stats(), {"name": "j"})
        self.assertEqual(s.save(), "j/step-00000001")
        self.assertEqual(s.save("best", timeout=2), "j/best")
        self.assertEqual(FakeHandle.last.calls[-2:],
                         [("save", "", 7.0), ("save", "best", 2.0)])
        for name in (3, None, b"x"):
            with self.assertRaises(errors.InvalidArgument):
                s.save(name)
        with self.assertRaises(errors.FailedPrecondition) as caught:
            s.load("best")
        self.assertIn("load=", str(caught.exception))

    def test_load_is_an_option(self):
        session(load="other/best")
        self.assertEqual(FakeHandle.last.options["load"], "other/best")
        session()
        self.assertNotIn("load", FakeHandle.last.options)
        for name in ("", 3, b"x"):
            with self.assertRaises(errors.InvalidArgument):
                session(load=name)
    def test_what_is_not_gathered_is_refused(self):
        s = session(exchange={"secondary_partition": "none"})
        self.assertTrue(s.gathers_weights)
        with self.assertRaises(errors.FailedPrecondition) as caught:
            s.params["w"]
        self.assertIn("params['w'] is not resident: call gather(['w'])",
                      str(caught.exception))
        s.gather(["w", "b"], timeout=3)
        self.assertEqual(s.params["w"][1, 2], 5)
        s.release(["w"])
        self.assertFalse(s.is_held("w"))
        self.assertTrue(s.is_held("b"))
        with self.assertRaises(errors.FailedPrecondition):
            dict(s.params)
        self.assertEqual(FakeHandle.last.calls, [
            ("gather", [0, 1], True, 3.0), ("give_back", [0])])
        for wrong in ("w", ["nobody"]):
            with self.assertRaises(errors.InvalidArgument):
                s.gather(wrong)

    def test_state_dict_gathers_one_tensor_at_a_time(self):
        s = session(exchange={"secondary_partition": "none"})
        s.gather(["b"])
        FakeHandle.last.calls.clear()
        copies = s.state_dict()
        self.assertEqual(copies["w"].tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(FakeHandle.last.held, {1})
        self.assertEqual(
            [call[:2] for call in FakeHandle.last.calls[1:]],
            [("gather", [0]), ("give_back", [0]),
             ("gather", [2]), ("give_back", [2])])

    def test_trace_is_chromes_format(self):
        s = session()
        for _ in s.steps(2):
            s.push("w")
            s.step()
        s.wait()
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "trace.json")
            s.trace(path)
            with open(path) as stream:
                events = json.load(stream)["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual([e["name"] for e in spans][:8], [
            "push", "compute", "wait", "publish", "update", "vote", "reduce",
            "collect"])
        self.assertEqual({e["args"]["step"] for e in spans
                          if e["name"] == "compute"}, {1, 2})
        self.assertTrue(all(e["dur"] >= 0 for e in spans))
        starts = [e["ts"] for e in spans if e["name"] == "compute"]
        self.assertLess(starts[0], starts[1])

    def test_a_norm_is_of_one_step_and_of_all_groups(self):
        s = session(param_groups=[{"match": "b", "lr": 0.2}])
        s.step(max_norm=0.5)
        s.step()
        self.assertEqual(FakeHandle.last.norms, [0.5, 0.5, 0.0, 0.0])
        for bad in (0, -1, float("inf"), float("nan"), "1", True):
            with self.assertRaisesRegex(errors.InvalidArgument,
                                        "max_norm must be a finite number"):
                s.step(max_norm=bad)
        self.assertEqual(len(FakeHandle.last.norms), 4)

    def test_refuses_before_anything_is_opened(self):
        FakeHandle.last = None
        for bad in (dict(resume="maybe"), dict(gradient_clipping=-1),
                    dict(gradient_clipping=float("nan")),
                    dict(trainable="x*"), dict(tenant="a b"), dict(hold=0),
                    dict(connect_timeout=0), dict(exchange=""),
                    dict(token=b"\xff"), dict(address="foo")):
            with self.assertRaises(errors.InvalidArgument, msg=str(bad)):
                session(**bad)
        self.assertIsNone(FakeHandle.last)


@unittest.skipUnless(os.environ.get("BALLAST_LIBRARY"), "no libballast.so")
class LibraryTest(unittest.TestCase):
    """The real library, no daemon."""

    def test_structs_have_the_size_of_c(self):
        self.assertEqual(ctypes.sizeof(_library.ErrorStruct), 16 + 2048)
        self.assertEqual(ctypes.sizeof(_library.ResultStruct), 232)
        self.assertEqual(ctypes.sizeof(_library.TensorStruct), 48)
        self.assertEqual(ctypes.sizeof(_library.InfoStruct), 56)

    def test_says_what_it_tried(self):  # I23
        with self.assertRaises(errors.Unavailable) as caught:
            session(address="unix:///nonexistent/ballastd.sock",
                    connect_timeout=0.2)
        for part in ("no daemon at unix:///nonexistent/ballastd.sock",
                     "tried ", "BALLAST_ADDRESS"):
            self.assertIn(part, str(caught.exception))

    def test_ctrl_c_ends_a_wait(self):
        code = textwrap.dedent("""
            import numpy as np, ballast
            print("up", flush=True)
            ballast.Session(job="j", tensors={"w": np.zeros(1, np.float32)},
                            optimizer={"name": "sgd"}, connect_timeout=600,
                            address="/nonexistent/ballastd.sock")
            """)
        process = subprocess.Popen([sys.executable, "-c", code], text=True,
                                   stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), "up\n")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(process.returncode, -signal.SIGINT)


if __name__ == "__main__":
    unittest.main()
