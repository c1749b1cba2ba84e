"""Session: one worker of one training job, as Python sees it."""

import json
import operator
import sys
from typing import (Any, Dict, Iterator, List, Mapping, Optional, Sequence,
                    Tuple, Union)

import numpy as np

from . import _library, _names, _options, _tensors, errors, groups
from ._structs import tensor_structs
from ._trace import Trace
from ._views import GatheredViews, UnknownTensor, Views, over_memory
from .result import StepResult

_MAX_CURSOR_BYTES = 65536
_STATS_SECONDS = 10.0
_COLLECT_SECONDS = 5.0


class Session:
    """One rank's part in a training job whose optimizer state the node's
    daemon keeps. Opening blocks until all ranks are there.

    Args:
      job: its name, 1 to 63 characters A-Z a-z 0-9 . _ -. Default:
        BALLAST_JOB, else torchrun's run id.
      tensors: name -> numpy array (float32, float16), (uint16 array,
        "bfloat16"), or (shape, dtype) for a job that goes on. Rank 0's values
        are used. Names, shapes, dtypes and order must agree on all ranks.
      optimizer: {"name": "sgd" | "adam" | "adamw" | "lion" | "adagrad", …}
        with PyTorch's keys and defaults: lr, betas, eps, weight_decay,
        momentum, dampening, nesterov, lr_decay, initial_accumulator_value.
      param_groups: list of {"match": pattern or list of patterns, …} with
        values that differ from the optimizer's. A tensor belongs to the first
        entry that matches it.
      trainable: pattern or list of patterns; other tensors are frozen:
        published once, no gradient, no state. Default: all are trainable.
      exchange: how weights and gradients cross between nodes: "exact",
        "zeropp" (int8 weights, int4 gradients), "delta4" and "delta2" (4-bit
        and 2-bit differences of weights, rotated int4 gradients), or a dict of
        a policy's keys:
        {"preset": "zeropp", "gradients": {"block": 64}}.
      gradient_clipping: largest global norm; None or 0: no clipping.
      resume: "auto": a held job of this name and tensors goes on, else the
        newest snapshot of it; "never": a held job is refused, a snapshot not
        looked at; "must": there must be one.
      load: a snapshot to start from: "NAME" of this job, or "JOB/NAME". Any
        number of nodes and ranks may load it; cursors are given only to as
        many ranks as it was saved on. Refused if the job is held.
      address: the daemon's handle socket. Default: BALLAST_ADDRESS, else
        unix:///run/ballast/ballastd.sock.
      coordinator: host:port of node 0's peer plane. Default:
        BALLAST_COORDINATOR, else torchrun's MASTER_ADDR and port 7470, else
        the daemon's. Node 0 and jobs of one node need none.
      token: what the daemon asks for (default: content of
        BALLAST_TOKEN_FILE, less its last line end).
      timeout: seconds that opening, step() and wait() may block. A daemon
        that goes away before the session is open is waited for as long; a
        line on stderr says so.
      connect_timeout: seconds to look for a daemon that does not answer.
      rank, world_size, local_rank, local_world_size, node_rank: default to
        torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
        else to one rank.
      tenant: whose job it is ("default").
      bucket_bytes: size of a bucket; None: the daemon's. Small tensors share
        one; each bucket pays exchanges of its own.
      hold: seconds that the job is kept while a worker is missing; None: the
        daemon's.

    Raises the family of ballast.Error. Threads: one call at a time. Fork: a
    forked child cannot use its parent's session. Leaving a `with` block closes
    the session, or detaches it if an exception is on its way. A session that
    is dropped without either is detached.
    """

    def __init__(self, job: Optional[str] = None,
                 tensors: Optional[Mapping[str, Any]] = None,
                 optimizer: Optional[Mapping[str, Any]] = None, *,
                 param_groups: Optional[Sequence[Mapping[str, Any]]] = None,
                 trainable: Union[None, str, Sequence[str]] = None,
                 exchange: Union[str, Mapping[str, Any]] = "exact",
                 gradient_clipping: Optional[float] = None,
                 resume: str = "auto", load: Optional[str] = None,
                 address: Optional[str] = None,
                 coordinator: Optional[str] = None,
                 token: Optional[str] = None, timeout: float = 600.0,
                 connect_timeout: float = 30.0, rank: Optional[int] = None,
                 world_size: Optional[int] = None,
                 local_rank: Optional[int] = None,
                 local_world_size: Optional[int] = None,
                 node_rank: Optional[int] = None,
                 tenant: Optional[str] = None,
                 bucket_bytes: Optional[int] = None,
                 hold: Optional[float] = None):
        env = _options.environment()
        options: Dict[str, Any] = _options.topology(
            env, rank=rank, world_size=world_size, local_rank=local_rank,
            local_world_size=local_world_size, node_rank=node_rank)
        self.rank: int = options["rank"]
        self.world_size: int = options["world_size"]
        self.local_world_size: int = options["local_world_size"]
        self.job: str = _options.job_name(job, env)
        self.address: str = _options.address(address, env)
        self.coordinator: str = _options.coordinator(
            coordinator, env, self.world_size // options["local_world_size"])
        self.timeout: float = _options.seconds(timeout, "timeout")
        if resume not in ("auto", "never", "must"):
            raise errors.InvalidArgument(
                "resume must be \"auto\", \"never\" or \"must\", not %s"
                % _names.shown(resume))
        specs = _tensors.parse_tensors(tensors)
        names = [spec.name for spec in specs]
        name, defaults = groups.parse_optimizer(optimizer)
        self.param_groups: List[groups.ParamGroup] = groups.parse_groups(
            defaults, param_groups, names)
        frozen = set()
        if trainable is not None:
            trained = _names.matching(
                _names.patterns(trainable, "trainable"), names, "trainable")
            frozen = set(names) - set(trained)
        options.update(
            job=self.job, address=self.address,
            token=_options.token(token, env),
            exchange=_options.exchange(exchange), resume=resume,
            gradient_clipping=_clipping(gradient_clipping),
            open_timeout=self.timeout,
            connect_timeout=_options.seconds(connect_timeout,
                                             "connect_timeout"),
            optimizer={"name": name,
                       "groups": [g.flat() for g in self.param_groups]})
        if load is not None:
            if not isinstance(load, str) or not load:
                raise errors.InvalidArgument(
                    "load must be the name of a snapshot or None, not %s"
                    % _names.shown(load))
            options["load"] = load
        if self.coordinator:
            options["coordinator"] = self.coordinator
        if tenant is not None:
            options["tenant"] = _names.check_job_name(tenant, "tenant")
        if bucket_bytes is not None:
            options["bucket_bytes"] = bucket_bytes
        if hold is not None:
            options["hold_seconds"] = _options.seconds(hold, "hold")
        self._specs = specs
        self._index = {n: i for i, n in enumerate(names)}
        self._frozen = frozen
        self._open(options)

    def _open(self, options: Dict[str, Any]) -> None:
        structs, keep = tensor_structs(self._specs, self.param_groups,
                                        self._frozen, self.rank == 0)
        self._is_over = False
        self._handle = _library.Handle(json.dumps(options).encode(), structs)
        del keep  # values were copied into shared memory
        self._steps_tried = 0
        self._trace = Trace()
        self._cursor = self._handle.cursor()
        info = self._handle.info()
        self.resumed: bool = bool(info.resumed)
        self.gathers_weights: bool = self._handle.gathers_weights()
        self.params: Views = Views(*self._views(True))
        if self.gathers_weights:
            self.params = GatheredViews(
                *self._views(True),
                lambda name: self._handle.is_held(self._index[name]))
        self.grads = Views(*self._views(False))
        if self.resumed:
            given = ("; its former worker gave that step: what it gave counts"
                     if info.step_is_given else "")
            source = self._handle.resumed_from()
            print("ballast: job %s goes on at step %d (rank %d)%s%s; initial "
                  "values are not used%s"
                  % (self.job, info.open_step, self.rank,
                     source and " from the " + source, given,
                     self._take_groups()), file=sys.stderr)

    def _take_groups(self) -> str:
        """Takes the held job's hyperparameters; says which of the given ones
        they replace."""
        kept = []
        for index, group in enumerate(self.param_groups):
            given = dict(group)
            values = self._handle.group(index)
            group.take({f: getattr(values, f) for f in _library.GROUP_FIELDS})
            kept += ["%s %s (given %s) of group %d"
                     % (key, group[key], given[key], index)
                     for key in group
                     if group["params"] and group[key] != given[key]]
        if not kept:
            return ""
        return ("; kept " + ", ".join(kept)
                + ": to change them set s.param_groups")

    def _views(self, weights: bool
               ) -> Tuple[Dict[str, np.ndarray], str, Dict[str, str]]:
        arrays, absent = {}, {}
        for index, spec in enumerate(self._specs):
            if not weights and spec.name in self._frozen:
                absent[spec.name] = "it is frozen and has no gradient"
                continue
            find = self._handle.params if weights else self._handle.grads
            address, size = find(index)
            if size == 0:
                array = np.empty(spec.shape, spec.numpy_dtype)
                array.flags.writeable = not weights
            else:
                array = over_memory(self._handle, address, spec, weights)
            arrays[spec.name] = array
        return arrays, "params" if weights else "grads", absent

    def weights_place(self, name: str) -> _library.WeightsPlace:
        """For a mapping of one's own: the segment of all weights (opened
        read-only; map it at once, the fd stays the session's), its size, and
        where in it the tensor lies."""
        return self._handle.weights_place(self._tensor(name))

    # ---- Where the job is. ----

    @property
    def open_step(self) -> int:
        """The step to compute; the first of a job is 1."""
        return self._handle.info().open_step

    @property
    def step_is_given(self) -> bool:
        """Whether this rank's former worker gave all of the open step. It is
        computed again like any other, for what this process keeps and for
        ranks that meet in it; `params` stay as they were meanwhile (weights
        that are not resident do not). What that worker gave counts: `cursor`
        is its own after step()."""
        return bool(self._handle.info().step_is_given)

    @property
    def weight_version(self) -> int:
        """The step whose weights `params` shows."""
        return self._handle.info().weight_version

    @property
    def optimizer_step(self) -> int:
        """Updates so far; skipped steps are not counted."""
        return self._handle.info().optimizer_step

    @property
    def generation(self) -> int:
        return self._handle.info().generation

    @property
    def cursor(self) -> bytes:
        """This rank's cursor of the last committed step, b"" before."""
        return self._cursor

    @property
    def rank0_cursor(self) -> bytes:
        """What rank 0 committed with that step: the same on all ranks."""
        return self._handle.rank0_cursor()

    # ---- The training loop. ----

    def steps(self, total: int) -> Iterator[int]:
        """Yields the steps to compute, up to `total`: starts at the open step
        (also after a re-attach) and yields a step again after Aborted. Each
        turn must call step()."""
        try:
            last = operator.index(total)
        except TypeError:
            raise errors.InvalidArgument(
                "steps() takes the number of steps, an integer, not %s"
                % _names.shown(total)) from None
        return self._steps(last)

    def _steps(self, total: int) -> Iterator[int]:
        while self.open_step <= total:
            tried = self._steps_tried
            yield self.open_step
            if self._steps_tried == tried:
                raise errors.FailedPrecondition(
                    "step %d was not stepped: call step() in each turn of "
                    "steps()" % self.open_step)

    def push(self, name: str) -> None:
        """Hands over one tensor's gradient, which must not change until the
        step is committed. Its bucket goes when all of its tensors are in."""
        start = self._trace.now()
        self._handle.push(self._tensor(name))
        self._trace.pushed(name, start)

    def step(self, cursor: bytes = b"", wait: bool = True,
             timeout: Optional[float] = None,
             max_norm: Optional[float] = None) -> StepResult:
        """Pushes the rest and waits for commit and publish.

        Args:
          cursor: small bytes (at most 64 KiB) kept with this step: whatever
            this rank needs to go on from here (data position, RNG state).
          wait: False returns at commit, before the new weights are there: call
            wait(name) before reading each.
          timeout: seconds, instead of the session's.
          max_norm: largest global norm of this step, instead of the job's
            gradient_clipping; the same on all ranks.
        """
        if not isinstance(cursor, (bytes, bytearray, memoryview)):
            raise errors.InvalidArgument(
                "cursor must be bytes, not %s" % type(cursor).__name__)
        cursor = bytes(cursor)
        if len(cursor) > _MAX_CURSOR_BYTES:
            raise errors.InvalidArgument(
                "cursor has %d bytes, at most %d are kept: store what is "
                "large elsewhere and its name here"
                % (len(cursor), _MAX_CURSOR_BYTES))
        limit = self.timeout
        if timeout is not None:
            limit = _options.seconds(timeout, "timeout")
        norm = 0.0 if max_norm is None else _options.norm(max_norm)
        self._steps_tried += 1
        self._send_groups(norm)
        start = self._trace.now()
        result = StepResult.of(self._handle.step(cursor, wait, limit))
        self._trace.stepped(result.step, start, result.stage_seconds)
        self._cursor = self._handle.cursor()
        return result

    def load_weights(self, values: Optional[Mapping[str, Any]] = None, *,
                     reset_state: bool = False,
                     cursor: Optional[bytes] = None,
                     timeout: Optional[float] = None) -> StepResult:
        """Replaces the weights of the running job, in a step of its own that
        all ranks must take: each calls this in place of step(). It has a
        number as any step, and the new weights are that version.

        Args:
          values: name -> value as in `tensors`, of as many tensors as are to
            change. Rank 0's count; other ranks need not give any.
          reset_state: moments become zero; else they stay.
          cursor: as in step(); None: the rank's committed one stays.
          timeout: seconds, instead of the session's.

        Gradients are zero afterwards. Repeat it after DeadlineExceeded and
        Aborted. Frozen tensors cannot change.
        """
        given = {name: _tensors.parse_tensor(name, value)
                 for name, value in (values or {}).items()}
        for name, spec in given.items():
            own = self._specs[self._tensor(name)]
            if spec.value is None or spec[1:3] != own[1:3]:
                raise errors.InvalidArgument(
                    "load_weights: tensor %s is %s %s in this job; %s %s %s"
                    % (_names.shown(name), own.dtype, own.shape, spec.dtype,
                       spec.shape, "was given" if spec.value is not None
                       else "without a value was given"))
        limit = self.timeout
        if timeout is not None:
            limit = _options.seconds(timeout, "timeout")
        addresses = [given[spec.name].value.ctypes.data
                     if spec.name in given else None for spec in self._specs]
        self._steps_tried += 1
        self._send_groups(0.0)
        start = self._trace.now()
        result = StepResult.of(self._handle.load_weights(
            addresses, reset_state, cursor, limit))
        self._trace.stepped(result.step, start, result.stage_seconds)
        self._cursor = self._handle.cursor()
        return result

    def _send_groups(self, max_norm: float) -> None:
        for index, group in enumerate(self.param_groups):
            self._handle.set_group(index, _library.GroupStruct(
                **group.flat(), max_norm=max_norm))

    def wait(self, name: Optional[str] = None,
             timeout: Optional[float] = None) -> None:
        """Blocks until one tensor's (None: all) weights of the last committed
        step are published here."""
        limit = self.timeout
        if timeout is not None:
            limit = _options.seconds(timeout, "timeout")
        tensor = _library.ALL_TENSORS if name is None else self._tensor(name)
        start = self._trace.now()
        self._handle.wait(tensor, limit)
        self._trace.waited(name or "all", start)

    # ---- Asking. ----

    def state_dict(self) -> Dict[str, Any]:
        """Copies of all weights of one version, in the form that `tensors`
        takes. Not collective."""
        self.wait()
        copies: Dict[str, Any] = {}
        for spec in self._specs:
            copy = self._copy(spec.name)
            is_bf16 = spec.dtype == "bfloat16"
            copies[spec.name] = (copy, "bfloat16") if is_bf16 else copy
        return copies

    def _copy(self, name: str) -> np.ndarray:
        """Of weights that are not resident one tensor at a time."""
        if self._handle.is_held(self._index[name]):
            return np.array(self.params[name])
        self.gather([name])
        try:
            return np.array(self.params[name])
        finally:
            self.release([name])

    def stats(self) -> Dict[str, Any]:
        """The job as the daemon sees it: the same numbers as
        `ballastctl job NAME --json`. Not collective."""
        return json.loads(self._handle.stats(_STATS_SECONDS))

    def trace(self, path: str) -> None:
        """Writes what this rank did so far (the newest 100,000 spans) in
        Chrome's trace format: compute, push, wait, and the daemon's stages of
        each step. Not collective."""
        self._trace.write(path, self.rank, self.job)

    # ---- Snapshots. ----

    def save(self, name: str = "", timeout: Optional[float] = None) -> str:
        """Keeps the job as it is now, all of it, in the daemon's
        snapshots.directory: masters, moments, cursors, hyperparameters.
        Returns when it is durable; the other ranks go on meanwhile.

        Args:
          name: of the snapshot (grammar of job names); a snapshot of this
            name is replaced, and is never pruned. Default: the step's,
            "step-00000123".
          timeout: seconds, instead of the session's; after it the snapshot
            goes on without this rank.

        Returns its path below that directory, "JOB/NAME". Not collective.
        """
        if not isinstance(name, str):
            raise errors.InvalidArgument(
                "the name of a snapshot must be a str, not %s"
                % type(name).__name__)
        limit = self.timeout
        if timeout is not None:
            limit = _options.seconds(timeout, "timeout")
        return self._handle.save(name, limit)

    # ---- Weights that are not resident. ----

    def gather(self, names: Sequence[str], wait: bool = True,
               timeout: Optional[float] = None) -> None:
        """Fetches weights of the last committed step from their owners, with
        exchange={"secondary_partition": "none"}; again after each step, until
        release(). ResourceExhausted: the node would hold more than the
        policy's resident_bytes; then none of `names` is kept that was not
        held before.

        Args:
          wait: False asks for them and returns; wait(name) waits for each.
          timeout: seconds, instead of the session's.
        """
        limit = self.timeout
        if timeout is not None:
            limit = _options.seconds(timeout, "timeout")
        tensors = self._tensors(names, "gather")
        start = self._trace.now()
        self._handle.gather(tensors, wait, limit)
        if wait:
            self._trace.waited("gather", start)

    def release(self, names: Sequence[str]) -> None:
        """Gives back what gather() fetched: its memory goes when no worker of
        the node has it. Names that are not held are ignored."""
        self._handle.give_back(self._tensors(names, "release"))

    def is_held(self, name: str) -> bool:
        """Whether params[name] may be read now."""
        return self._handle.is_held(self._tensor(name))

    def _tensors(self, names: Sequence[str], call: str) -> List[int]:
        if isinstance(names, str):
            raise errors.InvalidArgument(
                "%s takes a list of names, as in %s([%s])"
                % (call, call, _names.shown(names)))
        return [self._tensor(name) for name in names]

    def load(self, name: str) -> None:
        """Refused: the state of a running job is all ranks'. A job starts
        from a snapshot by Session(…, load=name)."""
        raise errors.FailedPrecondition(
            "load(%s): a running job keeps its state; close it on all ranks "
            "and open it with load=%s" % (_names.shown(name),
                                          _names.shown(name)))

    # ---- The end. ----

    def detach(self, timeout: Optional[float] = None) -> None:
        """Leaves; the job is held for its other ranks and for whoever takes
        this place again. Views stay valid and frozen."""
        self._end(self._handle.detach, timeout)

    def close(self, timeout: Optional[float] = None) -> None:
        """This rank has finished; the job ends and its memory in the daemon
        is freed when all ranks have closed. Views stay valid and frozen.
        Closing twice does nothing."""
        self._end(self._handle.close, timeout)

    def _end(self, how: Any, timeout: Optional[float]) -> None:
        if self._is_over:
            return
        limit = min(self.timeout, 60.0)
        if timeout is not None:
            limit = _options.seconds(timeout, "timeout")
        how(limit)
        self._is_over = True

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.detach()
        except errors.Error:
            pass  # what is on its way says more

    def __del__(self) -> None:
        # Views that live on keep the handle: the lease must not live with
        # them. Without any, the handle goes now and its lease with it.
        handle = self.__dict__.pop("_handle", None)
        if handle is None or self._is_over:
            return
        self.params = self.grads = None  # type: ignore[assignment]
        if sys.getrefcount(handle) > 2:
            try:
                handle.detach(_COLLECT_SECONDS)
            except Exception:  # pylint: disable=broad-except
                pass  # nobody is there to be told

    def _tensor(self, name: str) -> int:
        if not isinstance(name, str) or name not in self._index:
            raise UnknownTensor(
                "no tensor has the name %s; the nearest is %s"
                % (_names.shown(name), _names.nearest(name, self._index)))
        return self._index[name]


def _clipping(value: Optional[float]) -> float:
    if value is None:
        return 0.0
    if (isinstance(value, bool) or not isinstance(value, (int, float))
            or not 0 <= value < float("inf")):
        raise errors.InvalidArgument(
            "gradient_clipping must be a number >= 0 or None, not %s"
            % _names.shown(value))
    return float(value)
