#!/usr/bin/python3 -B
"""The commands that make a lab's network; runs none of them."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import network  # noqa: E402

_ALL = "CapPrm:\t0\nCapEff:\t000001ffffffffff\n"


class NetworkTest(unittest.TestCase):

    def setUp(self):
        self.network = network.Network("k3x", 3, "200mbit")
        self.commands = self.network.up()

    def test_everything_lies_inside_the_labs_namespaces(self):
        mine = {"blabk3xsw", "blabk3xn0", "blabk3xn1", "blabk3xn2"}
        for command in self.commands:
            if command[:3] == ["ip", "netns", "add"]:
                self.assertIn(command[3], mine)
            else:
                self.assertEqual(command[1], "-n", command)
                self.assertIn(command[2], mine)
            if "peer" in command:
                self.assertEqual(command[-2:], ["netns", "blabk3xsw"])

    def test_namespaces_are_made_before_they_are_used(self):
        made = set()
        for command in self.commands:
            if command[:3] == ["ip", "netns", "add"]:
                made.add(command[3])
            else:
                self.assertIn(command[2], made)

    def test_both_directions_of_every_link_have_the_rate(self):
        shaped = {(c[2], c[6]) for c in self.commands if c[0] == "tc"}
        self.assertEqual(shaped, {
            ("blabk3xn%d" % n, "eth0") for n in range(3)} | {
                ("blabk3xsw", "p%d" % n) for n in range(3)})
        for command in self.commands:
            if command[0] == "tc":
                self.assertEqual(command[7:], [
                    "root", "tbf", "rate", "200mbit", "burst", "256k",
                    "latency", "50ms"])

    def test_a_link_is_shaped_before_it_is_up(self):
        for node in range(3):
            words = [" ".join(c) for c in self.commands
                     if c[2] == "blabk3xn%d" % node]
            shaped = [i for i, w in enumerate(words) if w.startswith("tc")]
            up = [i for i, w in enumerate(words) if w.endswith("eth0 up")]
            self.assertLess(shaped[0], up[0])

    def test_addresses_differ(self):
        self.assertEqual(len({self.network.address(n) for n in range(64)}), 64)

    def test_a_command_runs_inside(self):
        self.assertEqual(self.network.inside(1, ["env", "-i"]), [
            "ip", "netns", "exec", "blabk3xn1", "env", "-i"])


class NamesTest(unittest.TestCase):

    def test_only_the_labs_own_namespaces_are_its(self):
        found = network.of_lab("k3", [
            "blabk3n0", "blabk3n12", "blabk3sw", "blabk3xn0", "blabk3n",
            "blabk3swx", "xblabk3n0", "blab.3n0", "bl-ux-1-a", "blabk3n0n1"])
        self.assertEqual(found, ["blabk3n0", "blabk3n12", "blabk3sw"])

    def test_a_rate_has_one_form(self):
        for good in ("1gbit", "250mbit", "64kbit"):
            self.assertEqual(network.parse_rate(good), good)
        for bad in ("", "1", "0mbit", "1gbps", "-1gbit", "1.5gbit", "1gbit ",
                    "1GBIT", "1gbit\n", "1gbit latency 1s"):
            with self.assertRaises(ValueError, msg=bad):
                network.parse_rate(bad)


class RightsTest(unittest.TestCase):

    def test_root_has_them(self):
        self.assertEqual(network.missing_rights(_ALL), [])

    def test_each_missing_one_is_named(self):
        self.assertEqual(
            network.missing_rights("CapEff:\t000001ffffffefff\n"),
            ["CAP_NET_ADMIN"])
        self.assertEqual(
            network.missing_rights("CapEff:\t000001ffffdfffff\n"),
            ["CAP_SYS_ADMIN"])
        self.assertEqual(
            network.missing_rights("CapEff:\t0000000000000000\n"),
            ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
