"""Where and who: arguments before environment before defaults."""

import os
from typing import Any, Dict, Mapping, Optional

from . import _names, errors

DEFAULT_ADDRESS = "unix:///run/ballast/ballastd.sock"
_MAX_TOKEN_BYTES = 4096


def _integer(argument: Any, variable: str, default: int,
             env: Mapping[str, str], what: str) -> int:
    source = what
    value = argument
    if value is None and env.get(variable):
        source, value = variable, env[variable]
    if value is None:
        return default
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, float):
        raise errors.InvalidArgument(
            "%s must be an integer, not %s" % (source, _names.shown(value)))
    return number


def topology(env: Mapping[str, str], *, rank: Optional[int] = None,
             world_size: Optional[int] = None,
             local_rank: Optional[int] = None,
             local_world_size: Optional[int] = None,
             node_rank: Optional[int] = None) -> Dict[str, int]:
    """Ranks from arguments or torchrun's variables, checked together."""
    world = _integer(world_size, "WORLD_SIZE", 1, env, "world_size")
    me = _integer(rank, "RANK", 0, env, "rank")
    local_world = _integer(local_world_size, "LOCAL_WORLD_SIZE", world, env,
                           "local_world_size")
    if world < 1 or not 0 <= me < world:
        raise errors.InvalidArgument(
            "rank %d is not in [0, %d), the ranks of world_size" % (me, world))
    if local_world < 1 or world % local_world:
        raise errors.InvalidArgument(
            "local_world_size %d does not divide world_size %d: every node "
            "needs the same number of workers" % (local_world, world))
    local = _integer(local_rank, "LOCAL_RANK", me % local_world, env,
                     "local_rank")
    node = _integer(node_rank, "GROUP_RANK", me // local_world, env,
                    "node_rank")
    if not 0 <= local < local_world or me != node * local_world + local:
        raise errors.InvalidArgument(
            "rank %d, local_rank %d of %d and node_rank %d do not fit "
            "together: rank must be node_rank * local_world_size + local_rank"
            % (me, local, local_world, node))
    return {"rank": me, "world_size": world, "local_rank": local,
            "local_world_size": local_world, "node_rank": node}


def job_name(job: Optional[str], env: Mapping[str, str]) -> str:
    """The argument, BALLAST_JOB, or a torchrun run id other than "none"."""
    if job is not None:
        return _names.check_job_name(job, "job")
    if env.get("BALLAST_JOB"):
        return _names.check_job_name(env["BALLAST_JOB"], "BALLAST_JOB")
    run_id = env.get("TORCHELASTIC_RUN_ID", "")
    if run_id and run_id != "none":
        return _names.check_job_name(run_id, "TORCHELASTIC_RUN_ID")
    raise errors.InvalidArgument(
        "the job has no name: give job=, set BALLAST_JOB, or run torchrun "
        "with --rdzv_id")


def token(argument: Any, env: Mapping[str, str]) -> str:
    """The argument, or the content of BALLAST_TOKEN_FILE."""
    if argument is None:
        path = env.get("BALLAST_TOKEN_FILE")
        if not path:
            return ""
        try:
            with open(path, "r", encoding="utf-8") as stream:
                argument = stream.read(_MAX_TOKEN_BYTES + 2).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise errors.PermissionDenied(
                "BALLAST_TOKEN_FILE=%s cannot be read: %s"
                % (path, error)) from error
    try:
        if isinstance(argument, bytes):
            argument = argument.decode("utf-8", "strict")
        fits = len(argument.encode()) <= _MAX_TOKEN_BYTES
    except (AttributeError, UnicodeError):
        fits = False
    if not isinstance(argument, str) or not fits:
        raise errors.InvalidArgument(
            "token must be UTF-8 text of at most %d bytes" % _MAX_TOKEN_BYTES)
    return argument


def address(argument: Optional[str], env: Mapping[str, str]) -> str:
    value = argument or env.get("BALLAST_ADDRESS") or DEFAULT_ADDRESS
    path = value if isinstance(value, str) else ""
    for prefix in ("unix://", "unix:"):
        if path.startswith(prefix):
            path = path[len(prefix):]
            break
    if not path.startswith("/"):
        raise errors.InvalidArgument(
            "address must be the absolute path of a Unix socket, as in %s, "
            "not %s" % (DEFAULT_ADDRESS, _names.shown(value)))
    return value


PEER_PORT = 7470
_LOOPBACK = ("localhost", "127.", "::1", "[::1]")


def coordinator(argument: Optional[str], env: Mapping[str, str],
                num_nodes: int = 1) -> str:
    """host:port of node 0's peer plane: the argument, BALLAST_COORDINATOR,
    or, with several nodes, torchrun's MASTER_ADDR and the peer port. "": the
    daemon knows, or nobody asks. A MASTER_ADDR on this machine says nothing
    of where node 0's daemon is."""
    value = argument or env.get("BALLAST_COORDINATOR") or ""
    master = env.get("MASTER_ADDR") or ""
    if not value and num_nodes > 1 and master and \
            not master.startswith(_LOOPBACK):
        is_bare_ipv6 = ":" in master and not master.startswith("[")
        value = "%s:%d" % ("[%s]" % master if is_bare_ipv6 else master,
                           PEER_PORT)
    if value:
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise errors.InvalidArgument(
                "coordinator %s is not host:port" % _names.shown(value))
    return value


def seconds(value: Any, what: str) -> float:
    if (isinstance(value, bool) or not isinstance(value, (int, float))
            or not value > 0):
        raise errors.InvalidArgument(
            "%s must be a number of seconds > 0, not %s"
            % (what, _names.shown(value)))
    return float(min(value, 1e9))


def norm(value: Any) -> float:
    if (isinstance(value, bool) or not isinstance(value, (int, float))
            or not 0 < value < float("inf")):
        raise errors.InvalidArgument(
            "max_norm must be a finite number > 0, not %s"
            % _names.shown(value))
    return float(value)


def exchange(value: Any) -> str:
    """A preset's name, or a policy's keys as the daemon's one text.

    {"preset": "zeropp", "gradients": {"block": 64}} becomes
    "zeropp gradients.block=64". The daemon knows the keys.
    """
    if value == "":
        raise errors.InvalidArgument(
            "exchange must be the name of a preset, as in \"exact\", not ''")
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise errors.InvalidArgument(
            "exchange must be a preset's name or a dict of a policy's keys, "
            "not %s" % _names.shown(value))
    words = [_exchange_value("preset", value["preset"])] \
        if "preset" in value else []
    for key, entry in value.items():
        if key == "overrides":
            words += [_exchange_override(one) for one in entry]
        elif isinstance(entry, Mapping):
            words += [_exchange_word("%s.%s" % (key, inner), one)
                      for inner, one in entry.items()]
        elif key != "preset":
            words.append(_exchange_word(key, entry))
    return " ".join(words) or "exact"


def _exchange_word(key: str, value: Any) -> str:
    return "%s=%s" % (_exchange_value("key", key), _exchange_value(key, value))


def _exchange_override(override: Any) -> str:
    if not isinstance(override, Mapping) or set(override) != {"match", "codec"}:
        raise errors.InvalidArgument(
            "exchange: an override is {\"match\": PATTERN, \"codec\": NAME}, "
            "not %s" % _names.shown(override))
    return _exchange_word("override:%s" % override["match"], override["codec"])


def _exchange_value(key: str, value: Any) -> str:
    text = {None: "null", True: "true", False: "false"}[value] \
        if value is None or isinstance(value, bool) else str(value)
    if not text or " " in text or "=" in text:
        raise errors.InvalidArgument(
            "exchange: %s is %s, which no policy has; it is one word" %
            (key, _names.shown(value)))
    return text


def environment() -> Mapping[str, str]:
    return os.environ
