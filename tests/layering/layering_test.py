#!/usr/bin/python3
"""Graphs that are wrong in one way each must be refused, and say where."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import layering  # noqa: E402

_TABLE = layering.Table("""
layer 0 kernels server/base     # a comment
layer 1 server/metrics
layer 3 server/session server/membership
layer 4 server/collective
layer 5 server/engine
root kernels
aside client/worker: server/base
apart server/session server/engine
library @system//:prometheus: server/metrics
public kernels
together //server/base:pair: they hold each other
""")


def _library(label, deps=(), *, hdrs=None, srcs=(), kind="cc_library",
             visibility="//:layer_1", testonly=False, generator=""):
    name = label.rpartition(":")[2]
    package = label.rpartition(":")[0]
    if hdrs is None:
        hdrs = [package + ":" + name + ".h"]
    lists = {"deps": deps, "hdrs": hdrs, "srcs": srcs,
             "visibility": [visibility]}
    body = "".join('<list name="%s">%s</list>' % (
        key, "".join('<label value="%s"/>' % v for v in values))
        for key, values in lists.items())
    if testonly:
        body += '<boolean name="testonly" value="true"/>'
    if generator:
        body += ('<string name="generator_function" value="%s"/>' % generator)
    return '<rule class="%s" name="%s">%s</rule>' % (kind, label, body)


def _found(*nodes):
    xml = "<query>" + "".join(nodes) + "</query>"
    return layering.violations(layering.read_rules(xml), _TABLE)


class LayeringTest(unittest.TestCase):

    def assert_refused(self, text, *nodes):
        found = _found(*nodes)
        self.assertEqual(1, len(found), found)
        self.assertIn(text, found[0])

    def test_a_sound_graph_passes(self):
        self.assertEqual([], _found(
            _library("//server/base:ids", ["@system//:absl"]),
            _library("//kernels:tree", visibility="//visibility:public"),
            _library("//server/base:clock", ["//server/base:ids"]),
            _library("//server/metrics:table",
                     ["//server/base:ids", "@system//:prometheus"]),
            _library("//server/engine:job", ["//server/metrics:table"]),
            _library("//client/worker:worker", ["//server/base:ids"])))

    def test_upward_edge(self):
        self.assert_refused(
            "(layer 0) depends on //server/metrics:table (layer 1)",
            _library("//server/base:ids", ["//server/metrics:table"]))

    def test_edge_inside_a_layer(self):
        self.assert_refused(
            "(layer 3) depends on //server/membership:member (layer 3)",
            _library("//server/session:slot",
                     ["//server/membership:member"]))

    def test_edge_of_a_nested_package(self):
        self.assert_refused(
            "(layer 1) depends on //server/engine/host:host (layer 5)",
            _library("//server/metrics/page:page",
                     ["//server/engine/host:host"]))

    def test_kernels_stand_on_nothing(self):
        self.assert_refused(
            "kernels stands on nothing",
            _library("//kernels:sum", ["//server/base:ids"]))

    def test_path_between_modules_that_stay_apart(self):
        self.assert_refused(
            "//server/engine:job -> //server/collective:plan -> "
            "//server/session:slot",
            _library("//server/engine:job", ["//server/collective:plan"]),
            _library("//server/collective:plan", ["//server/session:slot"]))

    def test_client_that_reaches_the_server_by_a_detour(self):
        self.assert_refused(
            "//client/worker:worker -> //server/base:ids -> //kernels:sum",
            _library("//client/worker:worker", ["//server/base:ids"]),
            # Refused by itself too, were base not free to use kernels here.
            _library("//server/base:ids", ["//kernels:sum"],
                     testonly=True))

    def test_server_that_depends_on_a_client(self):
        self.assert_refused(
            "outside the layers",
            _library("//server/engine:job", ["//client/worker:worker"]))

    def test_library_in_a_second_module(self):
        self.assert_refused(
            "//server/engine:job names @system//:prometheus",
            _library("//server/engine:job", ["@system//:prometheus"]))

    def test_module_without_a_layer(self):
        self.assert_refused("no line of layers.txt names it",
                            _library("//server/newcomer:x"))

    def test_public_target(self):
        self.assert_refused("is public",
                            _library("//server/engine:job",
                                     visibility="//visibility:public"))

    def test_two_headers(self):
        self.assert_refused("one header", _library(
            "//server/base:ids",
            hdrs=["//server/base:ids.h", "//server/base:more.h"]))

    def test_source_of_another_name(self):
        self.assert_refused("one source", _library(
            "//server/base:ids", srcs=["//server/base:more.cc"]))

    def test_source_in_several_parts(self):
        parts = ["//server/base:ids.cc", "//server/base:ids_more.cc"]
        self.assertEqual([], _found(_library("//server/base:ids",
                                             srcs=parts)))
        self.assert_refused("one source", _library(
            "//server/base:ids", srcs=parts[1:]))

    def test_two_headers_that_the_table_explains(self):
        self.assertEqual([], _found(_library(
            "//server/base:pair",
            hdrs=["//server/base:a.h", "//server/base:b.h"])))
        with self.assertRaises(ValueError):
            layering.Table("together //server/base:pair")

    def test_generated_messages_have_their_own_shape(self):
        self.assertEqual([], _found(_library(
            "//server/base:x_proto", hdrs=["//server/base:x.pb.h"],
            generator="cc_grpc_proto")))

    def test_tests_may_reach_across(self):
        self.assertEqual([], _found(
            _library("//server/base:ids_test", ["//server/engine:job"],
                     kind="cc_test"),
            _library("//server/base:fake_clock", ["//server/engine:job"],
                     testonly=True)))

    def test_the_table_is_read_strictly(self):
        with self.assertRaises(ValueError):
            layering.Table("layers 0 server/base")

    def test_the_real_table_can_be_read(self):
        with open(layering.TABLE, encoding="utf-8") as stream:
            table = layering.Table(stream.read())
        self.assertEqual(7, table.layer["server/daemon"])


if __name__ == "__main__":
    unittest.main()
