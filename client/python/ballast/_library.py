"""libballast.so through ctypes: structs, prototypes, calls that raise.

Mirrors client/capi/ballast.h; the ABI version is checked when it is loaded.
"""

import ctypes
import os
from ctypes import (POINTER, byref, c_char, c_char_p, c_double, c_int,
                    c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p)
from typing import (Any, Callable, Generator, List, NamedTuple, Optional,
                    Sequence,
                    Tuple)

from . import errors

_ABI_MAJOR, _ABI_MINOR = 0, 9
_CANCELLED = 1
ALL_TENSORS = (1 << (8 * ctypes.sizeof(c_size_t))) - 1


class ErrorStruct(ctypes.Structure):
    _fields_ = [("code", c_int32), ("reserved", c_int32),
                ("resume_step", c_int64), ("message", c_char * 2048)]


class TensorStruct(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("shape", POINTER(c_int64)),
                ("ndim", c_int32), ("dtype", c_int32), ("frozen", c_int32),
                ("group", c_int32), ("initial", c_void_p),
                ("initial_bytes", c_uint64)]


GROUP_FIELDS = ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum",
                "dampening", "nesterov", "lr_decay",
                "initial_accumulator_value", "max_norm")


class GroupStruct(ctypes.Structure):
    _fields_ = [(name, c_double) for name in GROUP_FIELDS]


class InfoStruct(ctypes.Structure):
    _fields_ = [("open_step", c_int64), ("weight_version", c_int64),
                ("optimizer_step", c_int64), ("generation", c_int64),
                ("resumed", c_int32), ("num_buckets", c_int32),
                ("num_groups", c_int32), ("num_tensors", c_int32),
                ("step_is_given", c_int32), ("reserved", c_int32)]


class PathQualityStruct(ctypes.Structure):
    _fields_ = [("sampled", c_uint64), ("relative_error", c_double),
                ("clipped_share", c_double), ("residual_norm", c_double),
                ("num_wider", c_uint32), ("reserved", c_uint32)]


class ResultStruct(ctypes.Structure):
    _fields_ = [("step", c_int64), ("weight_version", c_int64),
                ("optimizer_step", c_int64), ("skipped", c_int32),
                ("fallbacks", c_uint32), ("loaded", c_int32),
                ("reserved", c_int32), ("grad_norm", c_double),
                ("clip_factor", c_double), ("lr", c_double),
                ("relative_error", c_double), ("wire_bytes_sent", c_uint64),
                ("wire_bytes_received", c_uint64),
                ("payload_bytes", c_uint64), ("seconds", c_double),
                ("stage_seconds", c_double * 6),
                ("gradients", PathQualityStruct),
                ("weights", PathQualityStruct)]


class WeightsPlace(NamedTuple):
    """Where a tensor's weights lie. The fd is the library's: -1 if no tensor
    has elements, closed with the session."""
    fd: int
    segment_bytes: int
    offset: int


_INTERRUPTED = ctypes.CFUNCTYPE(c_int, c_void_p)
_ERROR = POINTER(ErrorStruct)

_PROTOTYPES = {
    "ballast_open": (c_int, [c_char_p, POINTER(TensorStruct), c_size_t,
                             _INTERRUPTED, c_void_p, POINTER(c_void_p),
                             _ERROR]),
    "ballast_get_info": (c_int, [c_void_p, POINTER(InfoStruct), _ERROR]),
    "ballast_params": (c_void_p, [c_void_p, c_size_t, POINTER(c_uint64)]),
    "ballast_grads": (c_void_p, [c_void_p, c_size_t, POINTER(c_uint64)]),
    "ballast_weights": (c_int, [c_void_p, c_size_t, POINTER(c_int),
                                POINTER(c_uint64), POINTER(c_uint64),
                                _ERROR]),
    "ballast_group_get": (c_int, [c_void_p, c_size_t, POINTER(GroupStruct),
                                  _ERROR]),
    "ballast_group_set": (c_int, [c_void_p, c_size_t, POINTER(GroupStruct),
                                  _ERROR]),
    "ballast_push": (c_int, [c_void_p, c_size_t, _ERROR]),
    "ballast_step": (c_int, [c_void_p, c_char_p, c_size_t, c_int, c_double,
                             POINTER(ResultStruct), _ERROR]),
    "ballast_load_weights": (c_int, [c_void_p, POINTER(c_void_p), c_size_t,
                                     c_int, c_char_p, c_size_t, c_double,
                                     POINTER(ResultStruct), _ERROR]),
    "ballast_wait": (c_int, [c_void_p, c_size_t, c_double, _ERROR]),
    "ballast_gather": (c_int, [c_void_p, POINTER(c_size_t), c_size_t, c_int,
                               c_double, _ERROR]),
    "ballast_give_back": (c_int, [c_void_p, POINTER(c_size_t), c_size_t,
                                  _ERROR]),
    "ballast_is_held": (c_int, [c_void_p, c_size_t]),
    "ballast_gathers_weights": (c_int, [c_void_p]),
    "ballast_cursor": (c_int, [c_void_p, c_void_p, c_size_t,
                               POINTER(c_size_t), _ERROR]),
    "ballast_rank0_cursor": (c_int, [c_void_p, c_void_p, c_size_t,
                                     POINTER(c_size_t), _ERROR]),
    "ballast_resumed_from": (c_int, [c_void_p, c_void_p, c_size_t,
                                     POINTER(c_size_t), _ERROR]),
    "ballast_save": (c_int, [c_void_p, c_char_p, c_double, POINTER(c_int64),
                             POINTER(c_void_p), _ERROR]),
    "ballast_stats": (c_int, [c_void_p, c_double, POINTER(c_void_p),
                              _ERROR]),
    "ballast_free": (None, [c_void_p]),
    "ballast_detach": (c_int, [c_void_p, c_double, _ERROR]),
    "ballast_close": (c_int, [c_void_p, c_double, _ERROR]),
    "ballast_release": (None, [c_void_p]),
    "ballast_version": (c_char_p, []),
}


def find() -> str:
    """The path of libballast.so: $BALLAST_LIBRARY, or beside this package."""
    here = os.path.dirname(os.path.abspath(__file__))
    tried = []
    configured = os.environ.get("BALLAST_LIBRARY")
    if configured:
        tried.append(configured)
    else:
        tried += [os.path.join(here, "libballast.so"),
                  os.path.join(os.path.dirname(here), "libballast.so")]
    for path in tried:
        if os.path.isfile(path):
            return path
    raise errors.FailedPrecondition(
        "libballast.so is not at " + " nor ".join(tried) +
        "; build it and set BALLAST_LIBRARY (eval \"$(tools/env)\" does both)")


def abi_fits(major: int, minor: int) -> bool:
    """Whether a library of this ABI version can be used. Before a release
    (major 0) only the very same one; then a newer minor one, too."""
    if major != _ABI_MAJOR:
        return False
    return minor == _ABI_MINOR if major == 0 else minor >= _ABI_MINOR


_loaded: Optional[ctypes.CDLL] = None


def load() -> ctypes.CDLL:
    """The library, loaded once and checked."""
    global _loaded
    if _loaded is not None:
        return _loaded
    path = find()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise errors.FailedPrecondition(
            "cannot load %s: %s; install what it needs with tools/setup"
            % (path, error)) from error
    library.ballast_abi_version.restype = c_uint32
    version = library.ballast_abi_version()
    if not abi_fits(version >> 16, version & 0xffff):
        raise errors.FailedPrecondition(
            "%s has ABI version %d.%d, this package needs %d.%d: use the "
            "library and the package of one build"
            % (path, version >> 16, version & 0xffff, _ABI_MAJOR, _ABI_MINOR))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    _loaded = library
    return library


def _watch_signals(raised: List[BaseException]
                   ) -> Generator[int, Any, None]:
    """Asked between two waits in C: 1 if a signal handler raised.

    Handlers run as soon as Python code does. A function would run them before
    it could catch what they raise; a generator resumes inside its try block.
    """
    answer = 0
    while True:
        try:
            yield answer
            answer = 0
        except GeneratorExit:
            return
        except BaseException as error:  # pylint: disable=broad-except
            raised.append(error)
            answer = 1


class Handle:
    """Owns one ballast_session; views keep it alive through references, so
    that the mappings outlive the Session that made them."""

    def __init__(self, options: bytes, tensors: Any):
        self._library = load()
        self._raised: List[BaseException] = []
        watcher = _watch_signals(self._raised)
        next(watcher)
        self._callback = _INTERRUPTED(watcher.send)
        self._session = c_void_p()
        self.call(lambda error: self._library.ballast_open(
            options, tensors, len(tensors), self._callback, None,
            byref(self._session), error))

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session:
            self._library.ballast_release(session)

    def call(self, function: Callable[[Any], int]) -> None:
        """Runs function(error struct); raises what it reports."""
        error = ErrorStruct()
        self._raised.clear()
        code = function(byref(error))
        if code == 0:
            return
        if code == _CANCELLED and self._raised:
            raise self._raised.pop()
        resume = error.resume_step if error.resume_step >= 0 else None
        raise errors.from_code(code, error.message.decode("utf-8", "replace"),
                               resume)

    def info(self) -> InfoStruct:
        info = InfoStruct()
        self.call(lambda error: self._library.ballast_get_info(
            self._session, byref(info), error))
        return info

    def params(self, tensor: int) -> Tuple[int, int]:
        """Address (0: none) and size of a tensor's published weights."""
        size = c_uint64()
        address = self._library.ballast_params(self._session, tensor,
                                               byref(size))
        return address or 0, size.value

    def grads(self, tensor: int) -> Tuple[int, int]:
        """Address (0: none) and size of a tensor's gradient."""
        size = c_uint64()
        address = self._library.ballast_grads(self._session, tensor,
                                              byref(size))
        return address or 0, size.value

    def weights_place(self, tensor: int) -> WeightsPlace:
        fd, size, offset = c_int(-1), c_uint64(), c_uint64()
        self.call(lambda error: self._library.ballast_weights(
            self._session, tensor, byref(fd), byref(size), byref(offset),
            error))
        return WeightsPlace(fd.value, size.value, offset.value)

    def group(self, index: int) -> GroupStruct:
        group = GroupStruct()
        self.call(lambda error: self._library.ballast_group_get(
            self._session, index, byref(group), error))
        return group

    def set_group(self, index: int, group: GroupStruct) -> None:
        self.call(lambda error: self._library.ballast_group_set(
            self._session, index, byref(group), error))

    def push(self, tensor: int) -> None:
        self.call(lambda error: self._library.ballast_push(
            self._session, tensor, error))

    def step(self, cursor: bytes, wait: bool, timeout: float) -> ResultStruct:
        result = ResultStruct()
        self.call(lambda error: self._library.ballast_step(
            self._session, cursor, len(cursor), int(wait), timeout,
            byref(result), error))
        return result

    def load_weights(self, values: Sequence[Optional[int]], reset_state: bool,
                     cursor: Optional[bytes], timeout: float) -> ResultStruct:
        """`values`: an address per tensor, None for what stays; or none."""
        result = ResultStruct()
        array = (c_void_p * len(values))(*values)
        self.call(lambda error: self._library.ballast_load_weights(
            self._session, array, len(values), int(reset_state), cursor,
            len(cursor or b""), timeout, byref(result), error))
        return result

    def wait(self, tensor: int, timeout: float) -> None:
        self.call(lambda error: self._library.ballast_wait(
            self._session, tensor, timeout, error))

    def gather(self, tensors: Sequence[int], wait: bool,
               timeout: float) -> None:
        indexes = (c_size_t * len(tensors))(*tensors)
        self.call(lambda error: self._library.ballast_gather(
            self._session, indexes, len(tensors), int(wait), timeout, error))

    def give_back(self, tensors: Sequence[int]) -> None:
        indexes = (c_size_t * len(tensors))(*tensors)
        self.call(lambda error: self._library.ballast_give_back(
            self._session, indexes, len(tensors), error))

    def is_held(self, tensor: int) -> bool:
        return bool(self._library.ballast_is_held(self._session, tensor))

    def gathers_weights(self) -> bool:
        return bool(self._library.ballast_gathers_weights(self._session))

    def cursor(self) -> bytes:
        return self._copy(self._library.ballast_cursor)

    def rank0_cursor(self) -> bytes:
        return self._copy(self._library.ballast_rank0_cursor)

    def resumed_from(self) -> str:
        return self._copy(self._library.ballast_resumed_from).decode()

    def _copy(self, function: Any) -> bytes:
        buffer = ctypes.create_string_buffer(1 << 16)
        size = c_size_t()
        self.call(lambda error: function(
            self._session, buffer, len(buffer), byref(size), error))
        return ctypes.string_at(buffer, size.value)

    def stats(self, timeout: float) -> str:
        text = c_void_p()
        self.call(lambda error: self._library.ballast_stats(
            self._session, timeout, byref(text), error))
        try:
            return ctypes.string_at(text.value).decode()
        finally:
            self._library.ballast_free(text)

    def save(self, name: str, timeout: float) -> str:
        path = c_void_p()
        self.call(lambda error: self._library.ballast_save(
            self._session, name.encode(), timeout, None, byref(path), error))
        try:
            return ctypes.string_at(path.value).decode()
        finally:
            self._library.ballast_free(path)

    def detach(self, timeout: float) -> None:
        self.call(lambda error: self._library.ballast_detach(
            self._session, timeout, error))

    def close(self, timeout: float) -> None:
        self.call(lambda error: self._library.ballast_close(
            self._session, timeout, error))
