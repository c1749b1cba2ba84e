"""Reads a DeepSpeed JSON configuration as Ballast's arguments.

    reading = deepspeed.read("ds_config.json", world_size=8,
                             local_world_size=4)
    reading.refused      # [Refusal(key, value, reason, nearest, is_soft)]

Values are those of DeepSpeed's code where its documentation differs (Adam is
AdamW unless adam_w_mode is false, weight_decay is 0 by default). Needs no
torch.
"""

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Union

from . import _deepspeed_rules as rules
from . import _names, errors
from ._deepspeed_training import read_optimizer, read_scheduler

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu",
          "gradient_accumulation_steps")


class Refusal(NamedTuple):
    key: str
    value: Any
    reason: str
    nearest: str
    is_soft: bool  # without the key the results are the same

    def __str__(self) -> str:
        return "%s: %s is refused: %s; nearest: %s" % (
            self.key, _names.shown(self.value), self.reason, self.nearest)


class Reading:
    """What a configuration says.

    Attributes:
      arguments: of ballast.torch.Optimizer, "optimizer" and "hyper" among
        them.
      dtype: "float32" or "bfloat16", of the model.
      micro_batch, accumulation: the batch triple (micro_batch may be None).
      scheduler: None or {"type": …, "params": {…}}, complete.
      steps_per_print: None or a number; wall_clock_breakdown: a bool.
      changes: lines that say what differs from DeepSpeed.
      refused: what cannot be honoured.
    """

    def __init__(self, world_size: int, local_world_size: int):
        self.world_size = world_size
        self.local_world_size = local_world_size
        self.arguments: Dict[str, Any] = {}
        self.seen: Dict[str, Any] = {}
        self.dtype = "float32"
        self.micro_batch: Optional[int] = None
        self.accumulation = 1
        self.scheduler: Optional[Dict[str, Any]] = None
        self.steps_per_print: Optional[int] = None
        self.wall_clock_breakdown = False
        self.changes: List[str] = []
        self.refused: List[Refusal] = []

    def refuse(self, key: str, value: Any, reason: str, nearest: str,
               is_soft: bool = False) -> None:
        self.refused.append(Refusal(key, value, reason, nearest, is_soft))

    def note(self, key: str, value: Any, says: str) -> None:
        self.changes.append("%s: %s: %s" % (key, _names.shown(value), says))

    def check(self) -> "Reading":
        """Raises InvalidArgument that lists all that is refused."""
        if self.refused:
            raise errors.InvalidArgument(
                "the DeepSpeed configuration asks for what this version does "
                "not do (python3 -m ballast.convert drops what changes no "
                "result):\n  " + "\n  ".join(map(str, self.refused)))
        return self

    def config(self) -> Dict[str, Any]:
        """As `python3 -m ballast.convert` writes it."""
        return {"ballast": 1, "arguments": self.arguments,
                "dtype": self.dtype, "micro_batch": self.micro_batch,
                "accumulation": self.accumulation,
                "scheduler": self.scheduler,
                "steps_per_print": self.steps_per_print,
                "wall_clock_breakdown": self.wall_clock_breakdown}


Config = Union[str, "os.PathLike[str]", Mapping[str, Any]]


def load(config: Config) -> Mapping[str, Any]:
    """The object, or the JSON file of that name."""
    if isinstance(config, Mapping):
        return config
    try:
        with open(config, encoding="utf-8") as stream:
            value = json.load(stream)
    except (OSError, ValueError, TypeError) as error:
        raise errors.InvalidArgument(
            "config %s cannot be read as JSON: %s"
            % (_names.shown(config), error)) from error
    if not isinstance(value, dict):
        raise errors.InvalidArgument(
            "config %s must be a JSON object" % _names.shown(config))
    return value


def read(config: Config, world_size: int = 1,
         local_world_size: int = 1) -> Reading:
    """Every key, and nothing silently. Refusals are collected: see
    Reading.check. Also takes what ballast.convert wrote."""
    values = load(config)
    reading = Reading(world_size, local_world_size)
    if values.get("ballast") == 1:
        return _read_own(values, reading)
    for key, value in values.items():
        if key == "zero_optimization" and isinstance(value, dict):
            for inner, setting in value.items():
                _apply(reading, "zero_optimization." + inner, setting)
        elif key == "zero_optimization":
            reading.refuse(key, value, "must be an object",
                           "{\"stage\": 1}")
        else:
            _apply(reading, key, value)
    _read_zero(reading)
    _read_batch(reading)
    _read_types(reading)
    read_optimizer(reading)
    read_scheduler(reading)
    _read_printing(reading)
    return reading


def _apply(reading: Reading, key: str, value: Any) -> None:
    rule = rules.RULES.get(key)
    if rule is None:
        reading.refuse(key, value, "unknown key",
                       "\"%s\"" % rules.nearest_key(key))
    elif value == "auto":
        reading.refuse(key, value, "\"auto\" is filled in by other libraries",
                       "the value itself")
    else:
        rule.apply(reading, key, value)


def _read_own(values: Mapping[str, Any], reading: Reading) -> Reading:
    for key, value in values.items():
        if key == "ballast":
            continue
        if not hasattr(reading, key) or key not in reading.config():
            reading.refuse(key, value, "unknown key", "\"%s\""
                           % _names.nearest(key, reading.config()))
            continue
        setattr(reading, key, value)
    return reading


def _zero(reading: Reading, key: str, default: Any) -> Any:
    return reading.seen.get("zero_optimization." + key, default)


def _read_zero(reading: Reading) -> None:
    stage = _zero(reading, "stage", 0)
    key = "zero_optimization."
    if type(stage) is not int or not 0 <= stage <= 3:
        reading.refuse(key + "stage", stage, "must be 0, 1, 2 or 3", "2")
        return
    if stage == 0:
        reading.note(key + "stage", stage, "optimizer state is sharded over "
                     "the nodes all the same; results do not change")
    groups = _read_mics(reading, stage)
    if groups is None:
        _read_hpz(reading, stage)
    weights = _zero(reading, "zero_quantized_weights", False)
    gradients = _zero(reading, "zero_quantized_gradients", False)
    for name, value in (("zero_quantized_weights", weights),
                        ("zero_quantized_gradients", gradients)):
        if value not in (True, False):
            reading.refuse(key + name, value, "must be true or false",
                           "true")
        elif value and stage != 3:
            reading.refuse(key + name, value, "DeepSpeed has it in stage 3 "
                           "only, this is stage %d" % stage,
                           "stage 3, or exchange=\"zeropp\"")
    if weights is True and gradients is True:
        reading.arguments["exchange"] = "zeropp"
    elif weights is True:
        reading.arguments["exchange"] = {
            "weights": {"codec": "int8", "block": 256}}
    elif gradients is True:
        reading.arguments["exchange"] = {
            "gradients": {"codec": "int4", "block": 128}}
    if groups is not None:
        _add_groups(reading, groups)
    overlap = _zero(reading, "overlap_comm", None)
    if overlap not in (None, True, False):
        reading.refuse(key + "overlap_comm", overlap,
                       "must be true or false", "true")
    reading.arguments["overlap"] = stage == 3 if overlap is None \
        else overlap is True
    _read_offload(reading, "offload_optimizer")
    _read_offload(reading, "offload_param")


def _read_mics(reading: Reading, stage: int) -> Optional[int]:
    """How many nodes are a partition group; None: MiCS is off."""
    key = "zero_optimization.mics_shard_size"
    size = _zero(reading, "mics_shard_size", -1)
    local, world = reading.local_world_size, reading.world_size
    if size == -1 and type(size) is int:
        return None
    if type(size) is not int or size < 1 or world % size:
        reading.refuse(key, size, "does not divide the world size %d" % world,
                       "%d, the world size" % world)
    elif stage != 3:
        reading.refuse(key, size, "DeepSpeed has it in stage 3 only, this is "
                       "stage %d" % stage, "stage 3, or the exchange's "
                       "partition_nodes")
    elif size % local:
        reading.refuse(key, size, "a partition group is whole nodes of %d "
                       "ranks" % local, "%d, one node" % local)
    elif _zero(reading, "zero_hpz_partition_size", 1) not in (1, local):
        reading.refuse("zero_optimization.zero_hpz_partition_size",
                       _zero(reading, "zero_hpz_partition_size", 1),
                       "weights are resident once per node",
                       "%d, the local world size" % local, True)
    else:
        reading.note(key, size, "state is shared by groups of %d nodes; "
                     "weights are resident once per node" % (size // local))
        return size // local
    return 0


def _add_groups(reading: Reading, nodes: int) -> None:
    """Into the exchange; 0 was refused, all nodes are the default."""
    if nodes in (0, reading.world_size // reading.local_world_size):
        return
    exchange = reading.arguments.get("exchange", {"preset": "exact"})
    if isinstance(exchange, str):
        exchange = {"preset": exchange}
    reading.arguments["exchange"] = {**exchange, "partition_nodes": nodes}


def _read_hpz(reading: Reading, stage: int) -> None:
    key = "zero_optimization.zero_hpz_partition_size"
    size = _zero(reading, "zero_hpz_partition_size", 1)
    local, world = reading.local_world_size, reading.world_size
    if type(size) is not int or size < 1 or world % size:
        reading.refuse(key, size, "does not divide the world size %d" % world,
                       str(local))
    elif stage == 3 and size != local:
        reading.refuse(
            key, size, "weights are resident once per node; stage 3 without "
            "that is the exchange's secondary_partition: none",
            "%d, the local world size" % local, True)
    elif stage != 3 and size != 1:
        reading.refuse(key, size, "it is for stage 3", "remove it", True)


def _read_offload(reading: Reading, name: str) -> None:
    key = "zero_optimization." + name
    value = _zero(reading, name, None)
    if value is None:
        return
    if not isinstance(value, Mapping):
        reading.refuse(key, value, "must be an object",
                       "{\"device\": \"cpu\"}")
        return
    for inner, setting in value.items():
        path = key + "." + inner
        if inner == "device":
            if setting not in ("cpu", "none", None):
                reading.refuse(path, setting, "nothing is kept in files",
                               "cpu")
        elif inner == "pin_memory":
            reading.note(path, setting, "shared host memory is used; there "
                         "is no GPU to copy to")
        elif inner == "ratio":
            if setting != 1.0:
                reading.refuse(path, setting, "all state is in the daemon",
                               "1.0", True)
        elif inner in ("nvme_path", "buffer_count", "buffer_size",
                       "max_in_cpu", "pipeline_read", "pipeline_write",
                       "fast_init", "super_offload",
                       "cpuadam_cores_perc"):
            if setting not in rules.OFF:
                reading.refuse(path, setting, "nothing is swapped",
                               "remove it", True)
        else:
            reading.refuse(path, setting, "unknown key", "\"device\"")


def _read_batch(reading: Reading) -> None:
    for key in _BATCH:
        value = reading.seen.get(key)
        if value is not None and (type(value) is not int or value < 1):
            reading.refuse(key, value, "must be an integer >= 1", "1")
            return
    total, micro, steps = (reading.seen.get(key) for key in _BATCH)
    world = reading.world_size
    if total is not None and micro is None and steps is None:
        steps = 1
    if steps is None:
        steps = 1 if total is None or micro is None else \
            total // (micro * world)
    if micro is None and total is not None:
        micro = total // (steps * world)
    if total is not None and total != (micro or 0) * steps * world:
        reading.refuse(
            "train_batch_size", total, "is not micro batch %s x accumulation "
            "%d x world size %d" % (micro, steps, world),
            str((micro or 1) * max(1, steps) * world))
    reading.micro_batch, reading.accumulation = micro, max(1, steps)


def _read_types(reading: Reading) -> None:
    for key in ("bf16", "bfloat16"):
        value = reading.seen.get(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            reading.refuse(key, value, "must be an object",
                           "{\"enabled\": true}")
            continue
        for inner, setting in value.items():
            if inner == "enabled" and setting in (True, False):
                if setting:
                    reading.dtype = "bfloat16"
            elif inner == "immediate_grad_update":
                reading.note(key + "." + inner, setting, "gradients are "
                             "shared as they are made")
            else:
                reading.refuse(key + "." + inner, setting, "unknown key",
                               "\"enabled\"")


def _read_printing(reading: Reading) -> None:
    steps = reading.seen.get("steps_per_print")
    if steps is not None:
        number = rules.number_of(steps)
        if number is None or number < 1:
            reading.refuse("steps_per_print", steps, "must be a number >= 1",
                           "10")
        else:
            reading.steps_per_print = int(number)
    breakdown = reading.seen.get("wall_clock_breakdown", False)
    if type(breakdown) is not bool:
        reading.refuse("wall_clock_breakdown", breakdown,
                       "must be true or false", "false")
    reading.wall_clock_breakdown = breakdown is True
