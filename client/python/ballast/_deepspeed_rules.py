"""Every key of a DeepSpeed configuration: honoured, checked, or refused.

A rule is a function of (reader, key, value). It stores into
``reader.arguments`` or notes a change; what it refuses has a reason, the
nearest equivalent, and whether dropping the key leaves the training's results
as they are (``is_soft``; ``python3 -m ballast.convert`` then drops it).
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from . import _names

OFF = (None, False, 0, {}, [], "", "none")


class Rule(NamedTuple):
    """One row of the table in TORCH.md."""
    says: str
    apply: Callable[[Any, str, Any], None]


def sets(target: str, says: str, kind: Optional[type] = None) -> Rule:
    """Honoured: the value goes to an argument of ballast.torch.Optimizer."""
    def apply(reader: Any, key: str, value: Any) -> None:
        if kind is float and isinstance(value, int) \
                and not isinstance(value, bool):
            value = float(value)
        if kind is not None and type(value) is not kind:
            reader.refuse(key, value, "must be of type %s" % kind.__name__,
                          "correct it")
            return
        reader.arguments[target] = value
    return Rule(says, apply)


def only(allowed: Tuple[Any, ...], reason: str, nearest: str,
         is_soft: bool = True) -> Rule:
    """Taken if it says what Ballast does; refused otherwise."""
    def apply(reader: Any, key: str, value: Any) -> None:
        if not any(type(value) is type(a) and value == a for a in allowed) \
                and not (value in (None, "none") and None in allowed):
            reader.refuse(key, value, reason, nearest, is_soft)
    shown = ", ".join(
        "unset" if a is None else _json(a) for a in allowed)
    return Rule("only %s: %s; else refused: %s" % (shown, reason, nearest),
                apply)


def off(reason: str, nearest: str, is_soft: bool = False) -> Rule:
    """Refused unless it is switched off."""
    def apply(reader: Any, key: str, value: Any) -> None:
        enabled = value.get("enabled", True) if isinstance(value, dict) \
            and value else value
        if enabled not in OFF:
            reader.refuse(key, value, reason, nearest, is_soft)
    return Rule("refused unless off: %s; %s" % (reason, nearest), apply)


def dropped(reason: str, nearest: str = "remove it") -> Rule:
    """Refused; without it the results are the same."""
    def apply(reader: Any, key: str, value: Any) -> None:
        reader.refuse(key, value, reason, nearest, True)
    return Rule("refused: %s; %s" % (reason, nearest), apply)


def taken(says: str) -> Rule:
    """Honoured whatever it says, by what Ballast does anyway."""
    def apply(reader: Any, key: str, value: Any) -> None:
        reader.note(key, value, says)
    return Rule("honoured: " + says, apply)


def bound(elements: int, says: str) -> Rule:
    """An upper bound in elements that Ballast keeps."""
    def apply(reader: Any, key: str, value: Any) -> None:
        number = number_of(value)
        if number is None or number <= 0:
            reader.refuse(key, value, "must be a number > 0", "correct it")
        elif number < elements:
            reader.arguments["bucket_bytes"] = min(
                reader.arguments.get("bucket_bytes", 1 << 62),
                max(8192, 4 * int(number)))
    return Rule(says, apply)


def number_of(value: Any) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _json(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) \
        if isinstance(value, bool) else str(value)


def _remembers(reader: Any, key: str, value: Any) -> None:
    """Looked at when all keys are known."""
    reader.seen[key] = value


_CHECKED = "checked with the others"
_SNAPSHOTS = "the daemon keeps snapshots (snapshots.directory)"
_RESIDENT = ("gathering is the exchange's: secondary_partition: none, "
             "resident_bytes, and the optimizer's gather_cache=")
_METRICS = "the daemon's /metrics page (Prometheus) and optimizer.last_result"

_ZERO: Dict[str, Rule] = {
    "stage": Rule("0, 1, 2: honoured (state is sharded over the nodes, the "
                  "results are the same); 3: needs zero_hpz_partition_size = "
                  "local world size, or mics_shard_size", _remembers),
    "zero_hpz_partition_size": Rule(
        "local world size (weights once per node); others refused",
        _remembers),
    "zero_quantized_weights": Rule(
        "with stage 3: weights as int8, block 256", _remembers),
    "zero_quantized_gradients": Rule(
        "with stage 3: gradients as int4, block 128, between nodes (inside "
        "the node: exact)", _remembers),
    "zero_quantized_nontrainable_weights": off(
        "frozen weights keep their type", "bf16 for the whole model"),
    "zeropp_loco_param": off(
        "error feedback is the exchange's: gradients.error_feedback",
        "zero_quantized_gradients without it"),
    "overlap_comm": Rule("overlap=; unset: true with stage 3", _remembers),
    "reduce_bucket_size": bound(
        1 << 20, "honoured as an upper bound: buckets are at most 5 MiB of "
        "fp32, smaller if it says so"),
    "allgather_bucket_size": bound(
        1 << 20, "honoured as an upper bound, as reduce_bucket_size"),
    "contiguous_gradients": only((True,), "gradients are one shared segment",
                                 "true"),
    "reduce_scatter": only((True,), "gradients go to their owner only",
                           "true"),
    "allgather_partitions": only((True,), "weights are gathered", "true"),
    "use_multi_rank_bucket_allreduce": taken("buckets hold all ranks' parts"),
    "load_from_fp32_weights": only(
        (True,), "masters start from the given weights", "true"),
    "elastic_checkpoint": off(_SNAPSHOTS, "remove it", True),
    "offload_optimizer": Rule("device none or cpu: honoured, state is in the "
                              "daemon's host memory; nvme: refused",
                              _remembers),
    "offload_param": Rule("device none or cpu: honoured, weights are in shared "
                          "host memory; nvme: refused", _remembers),
    "cpu_offload": off("deprecated", "offload_optimizer: {\"device\": "
                       "\"cpu\"}", True),
    "cpu_offload_param": off("deprecated",
                             "offload_param: {\"device\": \"cpu\"}", True),
    "cpu_offload_use_pin_memory": off("deprecated", "remove it", True),
    "sub_group_size": taken("updates go in chunks of 256 KiB, which is less"),
    "stage3_prefetch_bucket_size": dropped(_RESIDENT),
    "stage3_param_persistence_threshold": dropped(_RESIDENT),
    "stage3_model_persistence_threshold": dropped(_RESIDENT),
    "stage3_max_live_parameters": dropped(_RESIDENT),
    "stage3_max_reuse_distance": dropped(_RESIDENT),
    "stage3_module_granularity_threshold": dropped(_RESIDENT),
    "stage3_use_all_reduce_for_fetch_params": off(_RESIDENT, "false", True),
    "stage3_allgather_sequential": off(_RESIDENT, "false", True),
    "stage3_partition_stream_chunk_size": off(_RESIDENT, "0", True),
    "stage3_gather_16bit_weights_on_model_save": taken(
        "model.state_dict() always has all weights"),
    "stage3_gather_fp16_weights_on_model_save": taken(
        "model.state_dict() always has all weights"),
    "round_robin_gradients": off("shards are fixed by the layout", "false",
                                 True),
    "ignore_unused_parameters": only(
        (True,), "unused parameters contribute zero", "true"),
    "legacy_stage1": off("there is one implementation", "false", True),
    "mics_shard_size": Rule(
        "with stage 3: the exchange's partition_nodes, shard size / local "
        "world size; groups of a part of a node, or that do not divide the "
        "job, are refused", _remembers),
    "mics_hierarchical_params_gather": taken(
        "weights come once per node, whatever their group"),
    "memory_efficient_linear": taken("PyTorch's own linear is used"),
    "override_module_apply": taken("modules are not touched"),
    "log_trace_cache_warnings": off("there is no trace cache", "false", True),
    "enable_sanity_checks": taken("checks are always on"),
    "pipeline_loading_checkpoint": off(_SNAPSHOTS, "false", True),
    "save_muon_momentum_buffer_in_memory": off("there is no Muon", "false"),
    "leaf_module": off(_RESIDENT, "remove it", True),
    "zenflow": off("every step is synchronous", "remove it"),
}

_TOP: Dict[str, Rule] = {
    "train_batch_size": Rule(
        "checked: micro batch × accumulation × world size", _remembers),
    "train_micro_batch_size_per_gpu": Rule(_CHECKED, _remembers),
    "gradient_accumulation_steps": Rule(
        "the engine's, and backward_passes_per_step", _remembers),
    "optimizer": Rule("see below", _remembers),
    "scheduler": Rule("see below", _remembers),
    "gradient_clipping": sets("gradient_clipping", "gradient_clipping=",
                              float),
    "bf16": Rule("enabled: the model is converted to bfloat16, masters are "
                 "fp32", _remembers),
    "bfloat16": Rule("as bf16", _remembers),
    "fp16": off("fp16 needs a GPU, whose memory comes with a later version",
                "bf16"),
    "amp": off("apex is not supported", "bf16, or torch.autocast"),
    "steps_per_print": Rule("the engine prints a line every N steps",
                            _remembers),
    "wall_clock_breakdown": Rule("the engine's line has the stages' times",
                                 _remembers),
    "zero_allow_untested_optimizer": taken("every optimizer here is tested"),
    "zero_force_ds_cpu_optimizer": only(
        (True,), "the update runs on the daemon's CPU", "true"),
    "prescale_gradients": off("the mean is one division after the sum",
                              "false", True),
    "gradient_predivide_factor": only(
        (1.0, 1), "the mean is one division after the sum", "1.0"),
    "sparse_gradients": off("gradients are dense", "sparse=False in the "
                            "embedding"),
    "communication_data_type": only(
        (None, "fp32"), "partial sums travel as fp32",
        "zero_quantized_gradients for fewer bytes"),
    "seq_parallel_comm_data_type": only(
        ("fp32",), "partial sums travel as fp32", "fp32"),
    "data_types": off("gradients have the parameter's type", "remove it"),
    "checkpoint": off(_SNAPSHOTS, "torch.save(model.state_dict())", True),
    "dump_state": off("repr(optimizer) shows it", "false", True),
    "memory_breakdown": off("ballastctl job NAME shows it", "false", True),
    "disable_allgather": off("weights are gathered", "false"),
    "graph_harvesting": off("there is no GPU path yet", "false", True),
    "vocabulary_size": dropped("it has no meaning here"),
    "dataloader_drop_last": off("data loaders are yours", "drop_last=True in "
                                "your DataLoader"),
    "use_data_before_expert_parallelism": off("there are no expert groups",
                                              "false"),
    "tensorboard": off("logs are elsewhere", _METRICS, True),
    "wandb": off("logs are elsewhere", _METRICS, True),
    "csv_monitor": off("logs are elsewhere", _METRICS, True),
    "comet": off("logs are elsewhere", _METRICS, True),
    "comms_logger": off("logs are elsewhere", _METRICS, True),
    "flops_profiler": off("it is DeepSpeed's tool", "torch.profiler", True),
    "autotuning": off("it is DeepSpeed's tool", "ballastctl plan (comes "
                      "later)", True),
    "activation_checkpointing": off("it is the model's",
                                    "torch.utils.checkpoint", True),
    "aio": off("nothing is swapped to files", "remove it", True),
    "elasticity": off("a job is resized by opening it again from a snapshot", "remove it"),
    "compression_training": off("it is the model's", "remove it"),
    "curriculum_learning": off("it is the data's", "your own loop"),
    "data_efficiency": off("it is the data's", "your own loop"),
    "progressive_layer_drop": off("it is the model's", "your own loop"),
    "eigenvalue": off("it is DeepSpeed's tool", "remove it"),
    "sparse_attention": off("it is the model's", "remove it"),
    "hybrid_engine": off("it is DeepSpeed's tool", "remove it"),
    "pipeline": off("there are data-parallel ranks only", "remove it"),
    "tensor_parallel": off("there are data-parallel ranks only",
                           "remove it"),
    "sequence_parallel_size": only(
        (1,), "there are data-parallel ranks only", "1", False),
    "compile": off("the model is yours", "torch.compile before initialize",
                   True),
    "nebula": off(_SNAPSHOTS, "remove it", True),
}

RULES: Dict[str, Rule] = {
    **_TOP, **{"zero_optimization." + k: v for k, v in _ZERO.items()}}


def table() -> str:
    """As TORCH.md has it."""
    return "\n".join(["| key | what becomes of it |", "| --- | --- |"] + [
        "| `%s` | %s |" % (key, rule.says.replace("|", "\\|"))
        for key, rule in RULES.items()])


def nearest_key(key: str) -> str:
    return _names.nearest(key, RULES)
