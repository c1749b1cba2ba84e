"""Plain values and arrays to bytes and back, without pickle: a cursor is read
by whoever takes the rank's place.

    bytes = JSON's length (u32) · JSON · arrays, one after the other

JSON keeps Python's ints and floats exactly. What it lacks is a list whose
first member is a tag: tuples, dicts with other keys than text, bytes, arrays.
"""

import collections
import json
import struct
from typing import Any, Dict, List

import numpy as np
import torch

from .. import _names, errors

_LENGTH = struct.Struct("<I")


def dumps(value: Any) -> bytes:
    """Refuses what is not plain, and says where it is."""
    arrays: List[bytes] = []
    text = json.dumps(_encode(value, arrays, "state"),
                      separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text] + arrays)


def loads(data: bytes) -> Any:
    """The reverse; InvalidArgument if `data` is something else."""
    try:
        (size,) = _LENGTH.unpack_from(data)
        tree = json.loads(data[_LENGTH.size:_LENGTH.size + size])
        return _decode(tree, memoryview(data)[_LENGTH.size + size:], [0])
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError,
            struct.error) as error:
        raise errors.InvalidArgument(
            "the job's cursor was not written by this library: %s"
            % error) from error


def _encode(value: Any, arrays: List[bytes], where: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) in (int, float):
        return value
    if isinstance(value, list):
        return ["l"] + [_encode(v, arrays, "%s[%d]" % (where, i))
                        for i, v in enumerate(value)]
    if isinstance(value, tuple):
        return ["t"] + [_encode(v, arrays, "%s[%d]" % (where, i))
                        for i, v in enumerate(value)]
    if isinstance(value, dict):
        tag = "c" if isinstance(value, collections.Counter) else "d"
        return [tag] + [[_encode(k, arrays, where),
                         _encode(v, arrays, "%s[%r]" % (where, k))]
                        for k, v in value.items()]
    if isinstance(value, (bytes, bytearray)):
        arrays.append(bytes(value))
        return ["b", len(value)]
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, arrays)
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    raise errors.InvalidArgument(
        "%s is a %s, which the cursor cannot carry (numbers, text, lists, "
        "dicts, bytes and tensors): %s"
        % (where, type(value).__name__, _names.shown(value)))


def _encode_tensor(value: torch.Tensor, arrays: List[bytes]) -> Any:
    plain = value.detach().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() \
        if plain.numel() else b""
    arrays.append(data)
    return ["a", str(plain.dtype)[len("torch."):], list(plain.shape),
            len(data)]


def _decode(tree: Any, arrays: memoryview, place: List[int]) -> Any:
    if not isinstance(tree, list):
        return tree
    tag, rest = tree[0], tree[1:]
    if tag == "l":
        return [_decode(v, arrays, place) for v in rest]
    if tag == "t":
        return tuple(_decode(v, arrays, place) for v in rest)
    if tag in ("c", "d"):
        result: Dict[Any, Any] = {} if tag == "d" else collections.Counter()
        for key, item in rest:
            name = _decode(key, arrays, place)
            result[name] = _decode(item, arrays, place)
        return result
    if tag == "b":
        return _take(arrays, place, rest[0])
    if tag == "a":
        dtype = getattr(torch, rest[0])
        if not isinstance(dtype, torch.dtype):
            raise ValueError("no dtype %s" % rest[0])
        data = bytearray(_take(arrays, place, rest[2]))
        flat = torch.frombuffer(data, dtype=dtype) if data else \
            torch.empty(0, dtype=dtype)
        return flat.reshape(rest[1])
    raise ValueError("no tag %s" % _names.shown(tag))


def _take(arrays: memoryview, place: List[int], size: int) -> bytes:
    start = place[0]
    if size < 0 or start + size > len(arrays):
        raise ValueError("it ends early")
    place[0] = start + size
    return bytes(arrays[start:start + size])
