#!/usr/bin/python3 -B
"""Counting: nothing that failed or was skipped may look passed."""

import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import bazel  # noqa: E402
import results  # noqa: E402

_GOOGLE_TEST = """\
<testsuites tests="4" failures="%d" disabled="1" name="AllTests">
  <testsuite name="A">
    <testcase name="B" status="run" result="completed" classname="A" />
    <testcase name="C" status="run" result="completed" classname="A">%s
    </testcase>
    <testcase name="S" status="run" result="skipped" classname="A">
      <skipped message="a.cc:6&#x0A;no GPU"><![CDATA[a.cc:6
no GPU]]></skipped>
    </testcase>
    <testcase name="DISABLED_X" status="notrun" classname="A" />
  </testsuite>
</testsuites>
"""
_BAZELS_OWN = """\
<testsuites><testsuite name="t" tests="1" failures="0" errors="0">
<testcase name="t" status="run"></testcase></testsuite></testsuites>
"""
_UNITTEST = """\
test_a (__main__.T.test_a) ... ok
test_b (__main__.T.test_b) ... skipped 'no torch'

----------------------------------------------------------------------
Ran 3 tests in 0.1s

%s
"""


class ResultsTest(unittest.TestCase):

    def _target(self, status, xml=_BAZELS_OWN, log=""):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        paths = []
        for name, text in (("log", log), ("xml", xml)):
            paths.append(os.path.join(folder.name, name))
            with open(paths[-1], "wb") as stream:
                stream.write(text.encode("latin-1"))
        return bazel.Target("//a:t", status, *paths)

    def _count(self, *arguments):
        return results.count(self._target(*arguments))

    def test_google_test(self):
        counts = self._count("PASSED", _GOOGLE_TEST % (0, ""))
        self.assertEqual((2, 0, 2), counts[:3])
        self.assertEqual(["skipped //a:t A.S: no GPU",
                          "skipped //a:t A.DISABLED_X: disabled"],
                         counts.notes)

    def test_google_test_failure(self):
        counts = self._count("FAILED",
                             _GOOGLE_TEST % (1, '<failure message="x"/>'))
        self.assertEqual((1, 1, 2), counts[:3])
        self.assertIn("FAILED //a:t A.C", counts.notes)

    def test_google_test_that_quotes_any_bytes(self):
        counts = self._count("FAILED", _GOOGLE_TEST % (
            1, '<failure message="\xde\x93"/>\x0b'))
        self.assertEqual((1, 1, 2), counts[:3])

    def test_passed_when_it_ran_again(self):
        counts = self._count("FLAKY", _GOOGLE_TEST % (0, ""))
        self.assertEqual((2, 0, 2), counts[:3])
        self.assertIn("flaky //a:t: failed, then passed when it ran again",
                      counts.notes)

    def test_death_outside_of_the_cases(self):
        counts = self._count("FAILED", _GOOGLE_TEST % (0, ""))
        self.assertEqual((2, 1, 2), counts[:3])

    def test_unittest(self):
        counts = self._count("PASSED", _BAZELS_OWN,
                             _UNITTEST % "OK (skipped=1)")
        self.assertEqual((2, 0, 1), counts[:3])
        self.assertIn("no torch", counts.notes[0])

    def test_unittest_failure(self):
        counts = self._count("FAILED", _BAZELS_OWN,
                             _UNITTEST % "FAILED (failures=1, errors=1)")
        self.assertEqual((1, 2, 0), counts[:3])

    def test_script(self):
        counts = self._count("PASSED", _BAZELS_OWN,
                             "PASS a\nnoise\nSKIP b: no ip\nPASS c\n")
        self.assertEqual((2, 0, 1), counts[:3])

    def test_a_target_without_cases_counts_one(self):
        self.assertEqual((1, 0, 0), self._count("PASSED")[:3])
        self.assertEqual((0, 1, 0), self._count("TIMEOUT")[:3])

    def test_not_built_is_a_failure_whatever_lies_about(self):
        stale = self._target("NOT_BUILT", _GOOGLE_TEST % (0, ""))
        self.assertEqual((0, 1, 0), results.count(stale)[:3])

    def test_events(self):
        events = "\n".join(json.dumps(event) for event in [
            {"id": {"testResult": {"label": "//a:t"}},
             "testResult": {"testActionOutput": [
                 {"name": "test.log", "uri": "file:///x/a%20b"}]}},
            {"id": {"testSummary": {"label": "//a:t"}},
             "testSummary": {"overallStatus": "PASSED"}}])
        self.assertEqual(
            [bazel.Target("//a:t", "PASSED", "/x/a b", None),
             bazel.Target("//a:u", "NOT_BUILT", None, None)],
            list(bazel.targets_of(events, ["//a:u", "//a:t"])))


if __name__ == "__main__":
    unittest.main()
