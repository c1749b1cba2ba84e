#!/usr/bin/python3 -B
"""Each ban must catch its word, spare its likeness, and honour its places."""

import os
import shutil
import sys
import tempfile
import unittest

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)

import checks  # noqa: E402
import sources  # noqa: E402

_RULES = checks.read_rules(os.path.join(_HERE, "banned.txt"))
_ENGINE = "server/engine/job.cc"

# rule -> (what it refuses, what it lets pass)
_EXAMPLES = {
    "clock": (["auto t = absl::Now();",
               "using C = std::chrono::steady_clock;", "x = time(nullptr);"],
              ["clock->Now();", "run_time(0);"]),
    "sleep": (["std::this_thread::sleep_for(d);", "usleep(10);"],
              ["AsleepFor(d);", "can_sleep(x);"]),
    "thread": (["std::thread t(f);", "std::async(f);"],
               ["std::this_thread::get_id();"]),
    "detached thread": (["t.detach();"], ["job.Detach();"]),
    "mutex": (["absl::Mutex m;", "std::mutex m;"], ["base::Mutex m;"]),
    "environment": (["getenv(\"X\");", "std::getenv(name)"],
                    ["forgetenv(x)"]),
    "new": (["auto* x = new Thing();", "new (p) T;"],
            ["std::unique_ptr<X>(new X(a));", "new_size = 1;",
             "Foo renew(x);"]),
    "delete": (["delete x;", "delete[] x;"], ["X(const X&) = delete;"]),
    "malloc": (["free(p);", "std::malloc(4)"], ["is_free(p)"]),
    "exception": (["throw 1;"], ["rethrow_count"]),
    "run-time type": (["dynamic_cast<X*>(y)"], ["static_cast<X*>(y)"]),
    "volatile": (["volatile int x;"], ["asm volatile(\"\");"]),
    "random": (["std::mt19937 r;"], ["base::Random r;"]),
    "unseeded random": (["std::random_device r;", "rand()"], ["grand()"]),
    "named shared memory": (["shm_open(n, f, m);"], ["shm_opened(n)"]),
    "test door": (["FRIEND_TEST(A, B);", "#define private public"], []),
    "to do": (["// TODO: later", "// TODO(name): x"],
              ["// TODO(12): gather"]),
}


def _complaints(text, path=_ENGINE):
    return checks.banned_in(path, text, _RULES)


class BannedTest(unittest.TestCase):

    def test_every_rule_has_examples(self):
        self.assertEqual({r.name for r in _RULES},
                         set(_EXAMPLES) | {"check"})

    def test_examples(self):
        for name, (bad, good) in _EXAMPLES.items():
            for line in bad:
                found = _complaints(line)
                self.assertTrue(any(": %s: " % name in f for f in found),
                                (name, line, found))
            for line in good:
                found = _complaints(line)
                self.assertFalse(any(": %s: " % name in f for f in found),
                                 (name, line, found))

    def test_check_only_where_strangers_speak(self):
        self.assertTrue(_complaints("CHECK(x);", "server/session/slot.cc"))
        self.assertTrue(_complaints("assert(x);", "server/ipc/a.h"))
        self.assertEqual([], _complaints("CHECK(x);"))
        self.assertEqual([], _complaints("CHECK(x);", "server/ipc/a_test.cc"))

    def test_places(self):
        self.assertEqual([], _complaints("std::mutex m;",
                                         "server/base/mutex.h"))
        self.assertEqual([], _complaints("std::thread t;",
                                         "server/engine/job_test.cc"))
        self.assertTrue(_complaints("absl::SleepFor(d);",
                                    "server/engine/job_test.cc"))

    def test_comments_and_strings_are_free(self):
        self.assertEqual([], _complaints(
            "// a new thing, see std::mutex\n"
            "/* delete x;\n   throw 1; */\n"
            "Say(\"cannot delete x\", 'x', R\"(throw 1;)\");\n"))

    def test_code_after_a_literal_is_seen(self):
        self.assertEqual(2, len(_complaints(
            "int n = 1'000; throw n;\nSay(\"// no\"); throw 1;\n")))

    def test_a_rule_file_is_read_strictly(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rules")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write("rule: a\npattern: b\nwhy: c\nexcpet: d\n")
            with self.assertRaises(ValueError):
                checks.read_rules(path)


class TreeTest(unittest.TestCase):

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)

    def _write(self, path, text):
        full = os.path.join(self._folder.name, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as stream:
            stream.write(text)

    def test_file_length(self):
        self._write("a/long.cc", "x\n" * 1001)
        self._write("a/long_test.cc", "x\n" * 1200)
        self._write("a/fine.cc", "x\n" * 400)
        found = checks.file_length(self._folder.name)
        self.assertEqual(1, len(found), found)
        self.assertIn("a/long.cc: 1001 lines", found[0])

    def test_readmes(self):
        self._write("a/README.md", "x\n" * 61)
        self._write("b/README.md", "x\n" * 60)
        self.assertEqual(["a/README.md: more than 60 lines"],
                         checks.readmes(self._folder.name))

    def test_scripts(self):
        self._write("a/good.py", "x = 1\n")
        self._write("a/bad.py", "x = = 1\n")
        self._write("a/bad.sh", "#!/bin/sh\nif true\n")
        self._write("a/good", "#!/bin/sh\ntrue\n")
        self.assertEqual(2, len(checks.scripts(self._folder.name)))

    def test_failpoints(self):
        self._write("server/daemon/BUILD",
                    '_FAILPOINT_SOURCES = [\n"a.cc",\n"//server/x:b.cc",\n]\n'
                    'cc_library(srcs = ["//server/x:c.cc"])\n')
        self._write("server/daemon/a.cc", 'BALLAST_FAILPOINT("x");\n')
        self._write("server/x/b.cc", 'if (BALLAST_SABOTAGED("x")) y();\n')
        self._write("server/x/d.h", '// BALLAST_FAILPOINT("x")\n')
        self.assertEqual(checks.failpoints(self._folder.name), [])
        self._write("server/x/c.cc", 'BALLAST_FAILPOINT("x");\n')
        self._write("server/x/d.h", 'BALLAST_FAILPOINT_STATUS("x");\n')
        found = checks.failpoints(self._folder.name)
        self.assertEqual(len(found), 2)
        self.assertIn("server/x/c.cc: has failpoints", found[0])
        self.assertIn(".cc files", found[1])

    def test_locks(self):
        if shutil.which("clang++-14") is None:
            self.skipTest("no clang++-14 on this machine")
        self._write("server/base/mutex.h", """
            struct __attribute__((capability("mutex"))) Mutex {
              void Lock() __attribute__((acquire_capability()));
              void Unlock() __attribute__((release_capability()));
            };
        """)
        text = """
            #include "server/base/mutex.h"
            Mutex m;
            int guarded __attribute__((guarded_by(m)));
            void Good() { m.Lock(); guarded = 1; m.Unlock(); }
        """
        self._write("a/good.cc", text)
        self._write("a/bad.cc", text + "void Bad() { guarded = 2; }\n")
        found = checks.locks(self._folder.name, "none")
        self.assertEqual(1, len(found), found)
        self.assertIn("a/bad.cc", found[0])

    def test_outputs_are_no_sources(self):
        self._write(".out/a.cc", "")
        self._write("bazel-bin/a.cc", "")
        self._write("a/a.cc", "")
        self.assertEqual(["a/a.cc"], list(sources.files(self._folder.name,
                                                        sources.CPP)))


if __name__ == "__main__":
    unittest.main()
