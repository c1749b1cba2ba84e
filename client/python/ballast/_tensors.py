"""The `tensors` argument: what is described, checked before it is sent."""

from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from . import _names, errors

# Numbers are those of client/capi/ballast.h.
_CODES = {"float32": 1, "bfloat16": 2, "float16": 3}
_NUMPY = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(np.uint16),
          "float16": np.dtype(np.float16)}
_MAX_DIMENSIONS = 32


class TensorSpec(NamedTuple):
    name: str
    shape: Tuple[int, ...]
    dtype: str  # float32, bfloat16, float16
    value: Optional[np.ndarray]  # dense, C order

    @property
    def code(self) -> int:
        return _CODES[self.dtype]

    @property
    def numpy_dtype(self) -> np.dtype:
        """bf16 is shown as uint16: numpy has no bf16."""
        return _NUMPY[self.dtype]


def _dtype_name(dtype: Any, name: str) -> str:
    text = dtype if isinstance(dtype, str) else ""
    if not text:
        try:
            text = np.dtype(dtype).name
        except TypeError:
            text = str(dtype)
    if text not in _CODES:
        raise errors.InvalidArgument(
            "tensor %s: dtype %s is not float32, bfloat16 or float16"
            % (_names.shown(name), _names.shown(text)))
    return text


def _of_array(name: str, array: np.ndarray, dtype: str) -> TensorSpec:
    if array.dtype != _NUMPY[dtype]:
        raise errors.InvalidArgument(
            "tensor %s: a %s value must be a %s array, not %s"
            % (_names.shown(name), dtype, _NUMPY[dtype].name, array.dtype))
    value = np.asarray(array, order="C")
    return TensorSpec(name, tuple(array.shape), dtype, value)


def _of_plain_array(name: str, array: np.ndarray) -> TensorSpec:
    for dtype in ("float32", "float16"):
        if array.dtype == _NUMPY[dtype]:
            return _of_array(name, array, dtype)
    if array.dtype == np.uint16:
        remedy = "if it holds bf16, give (array, \"bfloat16\")"
    else:
        remedy = "convert it, as in array.astype(numpy.float32)"
    raise errors.InvalidArgument(
        "tensor %s has dtype %s, not float32 or float16: %s"
        % (_names.shown(name), array.dtype, remedy))


def _shape(name: str, shape: Any) -> Tuple[int, ...]:
    try:
        result = tuple(int(d) for d in shape)
        exact = all(int(d) == d for d in shape)
    except (TypeError, ValueError, OverflowError):
        result, exact = (), False
    if not exact or any(not 0 <= d < 1 << 63 for d in result):
        raise errors.InvalidArgument(
            "tensor %s: shape %s is not a tuple of 64-bit integers >= 0"
            % (_names.shown(name), _names.shown(shape)))
    return result


def parse_tensor(name: Any, value: Any) -> TensorSpec:
    """One entry: an array, (uint16 array, "bfloat16") or (shape, dtype)."""
    _names.check_tensor_name(name)
    if isinstance(value, (np.ndarray, np.generic)):
        spec = _of_plain_array(name, np.asarray(value))
    elif isinstance(value, tuple) and len(value) == 2:
        dtype = _dtype_name(value[1], name)
        if isinstance(value[0], (np.ndarray, np.generic)):
            spec = _of_array(name, np.asarray(value[0]), dtype)
        else:
            spec = TensorSpec(name, _shape(name, value[0]), dtype, None)
    else:
        raise errors.InvalidArgument(
            "tensor %s is a %s; give a numpy array, (uint16 array, "
            "\"bfloat16\") or (shape, dtype); of a torch tensor t take "
            "t.detach().cpu().numpy()"
            % (_names.shown(name), type(value).__name__))
    if len(spec.shape) > _MAX_DIMENSIONS:
        raise errors.InvalidArgument(
            "tensor %s has %d dimensions, at most %d are allowed"
            % (_names.shown(name), len(spec.shape), _MAX_DIMENSIONS))
    return spec


def parse_tensors(tensors: Any) -> List[TensorSpec]:
    """The whole argument, in its order. All entries have values, or none."""
    if not isinstance(tensors, Mapping) or not tensors:
        raise errors.InvalidArgument(
            "tensors must be a dictionary of at least one tensor, not %s"
            % _names.shown(tensors))
    specs = [parse_tensor(name, value) for name, value in tensors.items()]
    with_value = [s.name for s in specs if s.value is not None]
    without = [s.name for s in specs if s.value is None]
    if with_value and without:
        raise errors.InvalidArgument(
            "tensor %s has no value but %s has: give all values, or none "
            "(when the job is resumed or loaded)"
            % (_names.shown(without[0]), _names.shown(with_value[0])))
    return specs
