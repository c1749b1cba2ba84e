"""The sections "optimizer" and "scheduler" of a DeepSpeed configuration."""

from typing import Any, Dict, Mapping

from . import _names, errors, groups

_ADAM = ("Adam", "AdamW")
_TYPES = {"Adam": "adam", "AdamW": "adamw", "SGD": "sgd",
          "Adagrad": "adagrad", "Lion": "lion"}
SCHEDULES: Dict[str, Dict[str, Any]] = {
    "WarmupLR": {"warmup_min_lr": 0.0, "warmup_max_lr": None,
                 "warmup_num_steps": 1000, "warmup_type": "log"},
    "WarmupDecayLR": {"total_num_steps": None, "warmup_min_lr": 0.0,
                      "warmup_max_lr": 0.001, "warmup_num_steps": 1000,
                      "warmup_type": "log"},
    "WarmupCosineLR": {"total_num_steps": None, "warmup_min_ratio": 0.0,
                       "warmup_num_steps": 1000, "cos_min_ratio": 0.0001,
                       "warmup_type": "log"},
}


def read_optimizer(reading: Any) -> None:
    given = reading.seen.get("optimizer")
    if given is None:
        reading.refuse("optimizer", None, "the update runs in the daemon, "
                       "which must know it", "{\"type\": \"AdamW\", …}")
        return
    kind = given.get("type") if isinstance(given, Mapping) else None
    known = {k: v for k, v in _TYPES.items() if v in groups.OPTIMIZERS}
    by_lower = {k.lower(): k for k in known}
    kind = by_lower.get(kind.lower()) if isinstance(kind, str) else None
    if kind is None:
        reading.refuse("optimizer.type", given if not isinstance(
            given, Mapping) else given.get("type"),
            "the daemon has " + ", ".join(known), "AdamW")
        return
    for key in given:
        if key not in ("type", "params", "legacy_fusion"):
            reading.refuse("optimizer." + key, given[key], "unknown key",
                           "\"params\"")
    params = dict(given.get("params") or {})
    is_torch = bool(params.pop("torch_adam", False))
    name = _TYPES[kind]
    if kind in _ADAM:
        is_adamw = bool(params.pop("adam_w_mode", True)) or kind == "AdamW"
        name = "adamw" if is_adamw else "adam"
        if kind == "Adam" and is_adamw:
            reading.note("optimizer.type", kind, "is AdamW, as in DeepSpeed "
                         "(adam_w_mode is true unless it says false)")
    _read_params(reading, name, params, is_torch)


def _read_params(reading: Any, name: str, params: Dict[str, Any],
                 is_torch: bool) -> None:
    hyper: Dict[str, Any] = {}
    if "weight_decay" not in params and name == "adamw" and not is_torch:
        hyper["weight_decay"] = 0.0  # DeepSpeed's default, not PyTorch's
    for key, value in params.items():
        path = "optimizer.params." + key
        if value == "auto":
            reading.refuse(path, value, "\"auto\" is filled in by other "
                           "libraries", "the value itself")
        elif key in groups.OPTIMIZERS[name]:
            hyper[key] = value
        elif key == "max_grad_norm":
            reading.refuse(path, value, "DeepSpeed refuses it too",
                           "gradient_clipping")
        elif key in ("bias_correction", "amsgrad") and \
                value is (key == "bias_correction"):
            pass  # what the daemon does
        else:
            reading.refuse(path, value, "the daemon's %s has no such value"
                           % name, "\"%s\"" % _names.nearest(
                               key, groups.OPTIMIZERS[name]))
    try:
        _, checked = groups.parse_optimizer({"name": name, **hyper})
    except errors.InvalidArgument as error:
        reading.refuse("optimizer.params", params, str(error), "correct it")
        return
    reading.arguments["optimizer"] = name
    reading.arguments["hyper"] = checked


def read_scheduler(reading: Any) -> None:
    given = reading.seen.get("scheduler")
    if given is None:
        return
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind not in SCHEDULES:
        reading.refuse("scheduler.type", kind, "known are "
                       + ", ".join(SCHEDULES),
                       "one of torch.optim.lr_scheduler, given as "
                       "lr_scheduler=")
        return
    params = dict(SCHEDULES[kind])
    for key, value in (given.get("params") or {}).items():
        path = "scheduler.params." + key
        if key == "last_batch_iteration":
            if value != -1:
                reading.refuse(path, value, "a resumed job knows it", "-1",
                               True)
        elif key not in params:
            reading.refuse(path, value, "unknown key",
                           "\"%s\"" % _names.nearest(key, params))
        elif value == "auto":
            reading.refuse(path, value, "\"auto\" is filled in by other "
                           "libraries", "the value itself")
        else:
            params[key] = value
    if params.get("total_num_steps", 0) is None:
        reading.refuse("scheduler.params.total_num_steps", None,
                       "must be given", "the number of steps")
    if params["warmup_type"] not in ("log", "linear"):
        reading.refuse("scheduler.params.warmup_type", params["warmup_type"],
                       "must be \"log\" or \"linear\"", "log")
    reading.scheduler = {"type": kind, "params": params}
