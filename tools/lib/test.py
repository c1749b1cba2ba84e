"""tools/test after its packages are there: builds, tests, checks, counts."""

import argparse
import os
import signal
import sys
import tempfile
import time
from typing import Callable, List, Sequence

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(_ROOT, "tests", "layering"))

import checks  # noqa: E402
import layering  # noqa: E402
import results  # noqa: E402
from bazel import Bazel, targets_of  # noqa: E402

_NOT_SANITIZED = ("integration", "bench", "requires-gpu", "no-sanitizers")
_NOT_FAST = ("integration", "bench")
# Real processes on a machine that others load too: in CI such a target may run
# again, and is named if it had to (results.py).
_AGAIN_IN_CI = "--flaky_test_attempts=//tests/integration[/:].*@2"
# Summaries that repeat, target by target, what this program counts.
_CHATTER = ("There were tests whose specified size", "Executed ",
            "INFO: ", "Starting local Bazel server", "Test cases: finished")


def _say(text: str) -> None:
    print(text, flush=True)


def _say_unless_chatter(line: str) -> None:
    if line.strip() and not line.startswith(_CHATTER):
        _say(line)


def _tagged(expression: str, tags: Sequence[str]) -> str:
    """A query for what carries one of the tags."""
    return "attr(tags, '[\\[ ](%s)[,\\]]', %s)" % ("|".join(tags), expression)


class Run:
    """One run of tools/test; adds up what passed, failed and was skipped."""

    def __init__(self, bazel: Bazel, arguments: argparse.Namespace):
        self.bazel = bazel
        self.arguments = arguments
        self.total = results.NOTHING

    def check(self, name: str, work: Callable[[], List[str]]) -> None:
        try:
            complaints = work()
        except checks.Skipped as why:
            self.total += results.Counts(
                0, 0, 1, ["skipped check %s: %s" % (name, why)])
            return
        except RuntimeError as error:
            complaints = [str(error)]
        for complaint in complaints:
            _say("%s: %s" % (name, complaint))
        if complaints:
            self.total += results.Counts(
                0, 1, 0, ["FAILED check %s: %d complaints" %
                          (name, len(complaints))])
        else:
            self.total += results.Counts(1, 0, 0, [])

    def checks(self) -> None:
        _say("== checks")
        for name, work in checks.ALL.items():
            self.check(name, lambda work=work: work(_ROOT))
        self.check("layering", lambda: layering.complaints(
            self.bazel.query(layering.QUERY, output="xml")))
        self.check("layering catches", lambda: layering.control(
            self.bazel.query(layering.QUERY, output="xml")))

    def tests(self, config: str) -> None:
        """Builds and tests the chosen targets under one configuration."""
        _say("== build and test" + (" (%s)" % config if config else ""))
        scope = "(%s)" % " + ".join(self.arguments.targets)
        tests = "tests(%s)" % scope
        if config:
            chosen = "kind('cc_test rule', %s)" % tests
            chosen += " except " + _tagged(chosen, _NOT_SANITIZED)
        elif self.arguments.fast:
            chosen = tests + " except " + _tagged(tests, _NOT_FAST)
        else:
            chosen = tests
        by_hand = _tagged(tests, ["manual"])
        try:
            expected = self.bazel.labels("(%s) except %s" % (chosen, by_hand))
            self._not_run(by_hand, config)
        except RuntimeError as error:
            self.check("query", lambda: [str(error)])
            return
        # By name: patterns would choose again, by Bazel's own rules.
        wanted = list(expected)
        if not config and not self.arguments.fast:
            wanted = list(self.arguments.targets)
        if not wanted:
            _say("no tests here")
            return
        with tempfile.TemporaryDirectory(prefix="ballast-test-") as folder:
            self._bazel_test(config, wanted, expected, folder)

    def _bazel_test(self, config: str, wanted: List[str],
                    expected: List[str], folder: str) -> None:
        events = os.path.join(folder, "events")
        names = os.path.join(folder, "targets")
        with open(names, "w", encoding="utf-8") as stream:
            stream.write("\n".join(wanted))
        flags = ["--keep_going", "--build_event_json_file=" + events,
                 "--target_pattern_file=" + names]
        if config:
            flags.append("--config=" + config)
        if os.environ.get("CI"):
            flags.append(_AGAIN_IN_CI)
        began = time.monotonic()
        code = self.bazel.lines("test", flags, _say_unless_chatter)
        # 0 all passed, 3 some test failed, 4 there were no tests.
        if code not in (0, 3, 4):
            self.total += results.Counts(0, 1, 0, [
                "FAILED build%s: bazel ended with %d" %
                (" (%s)" % config if config else "", code)])
        else:
            self.total += results.Counts(1, 0, 0, [])
        text = ""
        if os.path.exists(events):
            with open(events, encoding="utf-8") as stream:
                text = stream.read()
        for target in targets_of(text, expected):
            self.total += results.count(target)
        _say("%d targets in %d s" %
             (len(expected), round(time.monotonic() - began)))

    def _not_run(self, by_hand: str, config: str) -> None:
        """Tests that only run when asked for are counted as skipped."""
        if config:
            return
        gpu = self.bazel.labels(_tagged(by_hand, ["requires-gpu"]))
        for label in self.bazel.labels(by_hand):
            why = "needs a GPU" if label in gpu else "only runs when asked for"
            self.total += results.Counts(
                0, 0, 1, ["skipped %s: %s" % (label, why)])


def _interrupt(_number, _frame) -> None:
    # A second signal (to the whole group, say) must not cut the end short.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/test", add_help=False,
                                     allow_abbrev=False)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--sanitizers", action="store_true")
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    whole = not arguments.targets
    arguments.targets = arguments.targets or ["//..."]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    run = Run(Bazel(_ROOT), arguments)
    interrupted = False
    try:
        if arguments.sanitizers:
            run.tests("asan")
            run.tests("tsan")
        else:
            if whole:
                run.checks()
            run.tests("")
            if whole:
                run.check("locks", lambda: checks.locks(
                    _ROOT, run.bazel.outputs()))
    except KeyboardInterrupt:
        interrupted = True
        run.total += results.Counts(0, 1, 0, ["FAILED: interrupted"])
    finally:
        run.bazel.stop()
    for note in sorted(run.total.notes, key=lambda n: n.startswith("FAILED")):
        _say(note)
    _say("%d passed, %d failed, %d skipped" % run.total[:3])
    if interrupted:
        return 130
    return 1 if run.total.failed or run.total.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
