"""The mirror of ballast.h: versions, structs, functions."""

import ctypes
import os
import re
import sys
import unittest
from unittest import mock

from ballast import _library, errors

_HERE = os.path.dirname(os.path.abspath(__file__))
_HEADER = os.path.join(_HERE, "..", "..", "capi", "ballast.h")
_TYPES = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
          "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
          "double": ctypes.c_double,
          "ballast_path_quality": _library.PathQualityStruct}
_STRUCTS = {"ballast_error": _library.ErrorStruct,
            "ballast_tensor": _library.TensorStruct,
            "ballast_group": _library.GroupStruct,
            "ballast_info": _library.InfoStruct,
            "ballast_path_quality": _library.PathQualityStruct,
            "ballast_step_result": _library.ResultStruct}


def header():
    with open(_HEADER, encoding="utf-8") as stream:
        return re.sub(r"/\*.*?\*/", "", stream.read(), flags=re.DOTALL)


def constant(name):
    return int(re.search(r"#define %s (\d+)" % name, header()).group(1))


def fields(struct):
    """(name, type, count) of each member; a pointer has the type None."""
    body = re.search(r"typedef struct %s \{(.*?)\}" % struct, header(),
                     re.DOTALL).group(1)
    result = []
    for line in filter(None, (one.strip() for one in body.split(";"))):
        kind, names = re.match(r"((?:const )?\w+\s*\**)\s*(.*)", line,
                               re.DOTALL).groups()
        for one in re.split(r",\s*", names):
            name, size = re.match(r"(\w+)(?:\[(\w+)\])?", one).groups()
            count = 1 if size is None else (
                int(size) if size.isdigit() else constant(size))
            result.append((name, kind.strip(), count))
    return result


def mirrored(struct):
    return [(name, kind) for name, kind in struct._fields_]


class MirrorTest(unittest.TestCase):

    def test_versions_are_the_headers(self):
        self.assertEqual((_library._ABI_MAJOR, _library._ABI_MINOR),
                         (constant("BALLAST_ABI_MAJOR"),
                          constant("BALLAST_ABI_MINOR")))

    def test_structs_are_the_headers(self):
        for name, struct in _STRUCTS.items():
            with self.subTest(name):
                wanted = fields(name)
                self.assertEqual([f[0] for f in wanted],
                                 [f[0] for f in mirrored(struct)])
                for (member, kind, count), (_, ours) in zip(
                        wanted, mirrored(struct)):
                    if kind.endswith("*"):
                        size = ctypes.sizeof(ctypes.c_void_p)
                    elif kind == "char":
                        size = count
                    else:
                        size = ctypes.sizeof(_TYPES[kind]) * count
                        element = getattr(ours, "_type_", ours)
                        self.assertEqual(
                            _TYPES[kind],
                            element if count > 1 else ours, member)
                    self.assertEqual(size, ctypes.sizeof(ours), member)

    def test_a_member_that_is_missing_is_seen(self):  # negative control
        class Short(ctypes.Structure):
            _fields_ = _library.GroupStruct._fields_[:-1]
        self.assertNotEqual([f[0] for f in fields("ballast_group")],
                            [f[0] for f in mirrored(Short)])

    def test_every_function_is_mirrored(self):
        declared = set(re.findall(r"\b(ballast_[a-z0-9_]+)\(", header()))
        self.assertEqual(declared - {"ballast_abi_version"},
                         set(_library._PROTOTYPES))


class VersionTest(unittest.TestCase):

    def fits(self, own, library):
        with mock.patch.multiple(_library, _ABI_MAJOR=own[0],
                                 _ABI_MINOR=own[1]):
            return _library.abi_fits(*library)

    def test_before_a_release_only_the_same_version_fits(self):
        for library, expected in (((0, 2), True), ((0, 3), False),
                                  ((0, 1), False), ((1, 2), False)):
            self.assertIs(self.fits((0, 2), library), expected, library)

    def test_from_then_on_a_newer_minor_version_does_too(self):
        for library, expected in (((1, 2), True), ((1, 3), True),
                                  ((1, 1), False), ((0, 2), False),
                                  ((2, 2), False)):
            self.assertIs(self.fits((1, 2), library), expected, library)

    def test_another_library_is_refused_with_both_versions(self):
        library = mock.Mock()
        library.ballast_abi_version.return_value = 7 << 16 | 5
        with mock.patch.object(_library, "_loaded", None), \
                mock.patch.object(_library, "find", return_value="x.so"), \
                mock.patch.object(ctypes, "CDLL", return_value=library):
            with self.assertRaisesRegex(
                    errors.FailedPrecondition,
                    r"x\.so has ABI version 7\.5, this package needs %d\.%d"
                    % (_library._ABI_MAJOR, _library._ABI_MINOR)):
                _library.load()


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
