"""Counts the cases of a test target from what it left behind.

* GoogleTest: every test of test.xml; GTEST_SKIP and DISABLED_ are skipped.
* Python's unittest: what its last lines say ("Ran 7 tests", "skipped=1").
* Scripts: the lines that begin with ``PASS ``, ``FAIL `` or ``SKIP ``.
* Anything else counts as one.

A target that failed counts at least one failure, whatever its cases say. One
that passed only when it ran again counts by that run, and is named.
"""

import re
import xml.etree.ElementTree as ElementTree
from typing import List, NamedTuple, Optional

from bazel import Target


class Counts(NamedTuple):
    passed: int
    failed: int
    skipped: int
    notes: List[str]  # one line for each failure and each skip, with why

    def __add__(self, other: "Counts") -> "Counts":  # type: ignore[override]
        return Counts(self.passed + other.passed, self.failed + other.failed,
                      self.skipped + other.skipped, self.notes + other.notes)


NOTHING = Counts(0, 0, 0, [])
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def count(target: Target) -> Counts:
    """The cases of one target."""
    cases = None
    if target.status != "NOT_BUILT":
        cases = _google_test(target) or _lines(target)
    if target.status == "PASSED":
        return cases or Counts(1, 0, 0, [])
    if target.status == "FLAKY":
        cases = cases or Counts(1, 0, 0, [])
        note = "flaky %s: failed, then passed when it ran again" % target.label
        return cases._replace(notes=[note] + cases.notes)
    why = "FAILED %s: %s" % (target.label, target.status.lower())
    if target.log:
        why += ", see " + target.log
    if cases is None:
        return Counts(0, 1, 0, [why])
    if cases.failed == 0:  # died after, or outside of, its cases
        cases += Counts(0, 1, 0, [])
    return cases._replace(notes=[why] + cases.notes)


def _google_test(target: Target) -> Optional[Counts]:
    try:
        with open(target.xml or "", "rb") as stream:
            text = stream.read().decode("utf-8", errors="replace")
        # GoogleTest quotes whatever bytes a failed comparison had.
        root = ElementTree.fromstring(_NOT_XML.sub("?", text))
    except (OSError, ElementTree.ParseError):
        return None
    if root.get("tests") is None:  # Bazel's own, made from the log
        return None
    total = NOTHING
    for case in root.iter("testcase"):
        name = "%s.%s" % (case.get("classname"), case.get("name"))
        skip = case.find("skipped")
        if case.find("failure") is not None:
            total += Counts(0, 1, 0, ["FAILED %s %s" % (target.label, name)])
        elif skip is not None:
            why = (skip.text or skip.get("message") or "").strip()
            why = why.splitlines()[-1] if why else "no reason given"
            total += _skipped(target, "%s: %s" % (name, why))
        elif case.get("status") == "notrun":
            total += _skipped(target, name + ": disabled")
        else:
            total += Counts(1, 0, 0, [])
    return total if total != NOTHING else None


def _lines(target: Target) -> Optional[Counts]:
    try:
        with open(target.log or "", encoding="utf-8",
                  errors="replace") as stream:
            text = stream.read()
    except OSError:
        return None
    return _unittest(target, text) or _script(target, text)


def _unittest(target: Target, text: str) -> Optional[Counts]:
    runs = re.findall(
        r"^Ran (\d+) tests? in [^\n]*\n+(?:OK|FAILED|NO TESTS RAN)([^\n]*)$",
        text, re.MULTILINE)
    if not runs:
        return None
    total = NOTHING
    for ran, details in runs:
        named = {key.strip(): int(value) for key, value
                 in re.findall(r"([a-z ]+)=(\d+)", details)}
        failed = (named.get("failures", 0) + named.get("errors", 0)
                  + named.get("unexpected successes", 0))
        skipped = named.get("skipped", 0)
        total += Counts(max(0, int(ran) - failed - skipped), failed, skipped,
                        [])
    notes = ["skipped %s %s: %s" % (target.label, name, why)
             for name, why in re.findall(
                 r"^(\S+) \([^\n]*\.\.\. skipped ['\"](.*)['\"]$", text,
                 re.MULTILINE)]
    if total.skipped and not notes:
        notes = ["skipped %s: %d, its log says why" %
                 (target.label, total.skipped)]
    return total._replace(notes=notes)


def _script(target: Target, text: str) -> Optional[Counts]:
    total = NOTHING
    for word, rest in re.findall(r"^(PASS|FAIL|SKIP) +(.*)$", text,
                                 re.MULTILINE):
        if word == "PASS":
            total += Counts(1, 0, 0, [])
        elif word == "FAIL":
            total += Counts(0, 1, 0, ["FAILED %s %s" % (target.label, rest)])
        else:
            total += _skipped(target, rest)
    return total if total != NOTHING else None


def _skipped(target: Target, why: str) -> Counts:
    return Counts(0, 0, 1, ["skipped %s %s" % (target.label, why)])
