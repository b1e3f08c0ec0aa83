"""Settings of a monitor, from the arguments of ``watch`` and from the environment.

This is the only module of the agent that reads ``os.environ``. A wrong argument raises, since it is a mistake
in the program and shows at its start; a wrong environment variable is reported and ignored, since it must not
stop a training job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from floatscope.preflight.given import PreflightRefused, given_preflight
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.formats import FORMATS
from floatscope.protocol.judgement import BriefFinding
from floatscope.protocol.names import MAX_STEPS, check_name, check_run_id

MODES = ("server", "local", "off")
DIMENSIONS = ("dp", "tp", "pp", "cp", "ep")
"""Data, tensor, pipeline, context and expert parallel."""
DEFAULT_SPOOL_DIR = "~/.local/state/floatscope"
STATS_EVERY_STEPS = 50  # statistics that read whole tensors; INTEGRATIONS of other tools use 50 to 200
COPY_BUDGET_BYTES = 32 * 2**20  # copies of old weights alive at a time


@dataclass(frozen=True)
class Launch:
    """What the launcher (torchrun, SLURM, MPI) says about this process; each None if it does not say.

    job_id: the same on all ranks of a job and after a requeue.
    """

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    job_id: str | None = None


@dataclass(frozen=True)
class MonitorConfig:
    """Every setting of a monitor, its default and its unit."""

    run: str
    """Display name of the run."""
    project: str = "default"
    """A group of runs, which the dashboard can show by itself."""
    run_id: str | None = None
    """Identity; the same id resumes the run. None: derived from name and launcher job."""
    baseline: str | None = None
    """run_id of the run to compare with. Never guessed."""
    mode: str = "local"
    """"server" sends, "local" writes a log file, "off" does nothing. Not given: "server" with a url."""
    rank: int = 0
    """Which process of the job this is, from 0. Not given: what the launcher says."""
    url: str | None = None
    """Address of the server, http(s)://host[:port]. None: FLOATSCOPE_URL."""
    token: str | None = field(default=None, repr=False)
    """Bearer token of the server. None: FLOATSCOPE_TOKEN."""
    spool_dir: Path = Path(DEFAULT_SPOOL_DIR)
    """Folder of all files, best on a local disk: spool, log, verdict, flight recorder, captures."""
    log_path: Path | None = None
    """Where to write the floatscope log (JSONL); also beside a server. None: in spool_dir in local mode."""
    launch: Launch = Launch()
    """What the launcher says about this process; not an argument of watch()."""

    stats_every: int = STATS_EVERY_STEPS
    """Steps between statistics that read whole tensors; 1 is every step."""
    layer_hooks: bool = True
    """Statistics of plain layers (any with a weight matrix, not cast to FP8) by hooks."""
    compiled_layers: bool = False
    """Statistics of layers inside code compiled by torch.compile; attach before its first call."""
    weight_updates: bool = True
    """update_ratio and unchanged_pct, which need a copy of the old weights."""
    copy_budget_bytes: int = COPY_BUDGET_BYTES
    """Copies of old weights alive at a time; what does not fit takes turns."""
    gpu: bool | None = None
    """NVML readings; None: where there is an NVIDIA GPU."""
    gpu_every_s: float = 5.0
    """Time between NVML readings, on a thread of their own."""
    scaler: Any = None
    """torch.amp.GradScaler. None: the one that steps the optimizer, found by itself."""
    vocab_size: int | None = None
    """Token ids below this are valid. None: taken from the model's first Embedding."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Shown with the run: hyperparameters and whatever helps to read it later."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Precision recipe, where the user knows better than the probes."""
    preflight: Mapping[str, Any] | Path | str | bool | None = None
    """What ``floatscope preflight --json`` said, as its object or its file; it goes with the run. None:
    FLOATSCOPE_PREFLIGHT, else the agent looks at this machine by itself; False: nothing."""

    check_format: str | None = None
    """A format such as "e4m3": layers that do not cast are measured against it (underflow, overflow)."""
    te_inspect: bool | None = None
    """Statistics through Transformer Engine's debug API on sampled steps. None: where it is initialised."""
    parameter_hashes: bool = True
    """Hashes of parameters and scales on sampled steps, by which ranks that ought to agree are compared."""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    """Where the rank stands: dp, tp, pp, cp, ep, each from 0. Empty: what Megatron or a device mesh say."""
    layer_offset: int = 0
    """Under pipeline parallelism, added to the numbers of this rank's layers."""

    diagnose: bool = True
    """In local mode, diagnose the run in a thread and write the verdict beside the log."""
    on_finding: Callable[[BriefFinding], None] | None = None
    """Called by ``step`` in the training thread for each finding that is new or has changed."""
    stop_on: str = "critical"
    """Severity from which ``should_stop`` is true: "critical", "warning" or "never"."""
    stop_confidence: float = 0.8
    """Confidence in a cause from which a finding counts for ``should_stop``. One whose cause is open, such as
    a loss that is NaN, is a fact all the same and counts at any."""
    clean_after: int = 50
    """Steps judged beyond a step before ``is_clean`` says yes: a fault is proven a while after it began."""
    capture: bool = True
    """Keep the last batch and the random states, to be saved on a finding or by ``capture()``."""
    most_captures: int = 4
    """Captures saved by findings; those asked for by ``capture()`` come on top."""
    recorder_steps: int = 256
    """Steps kept in the flight recorder; 0 for none."""
    recorder_bytes: int = 64 * 2**20
    """Size of the flight recorder's file at most."""

    spool: bool = True
    """Keep what a server has not acknowledged on disk (spool_dir), so that it outlives the process."""
    spool_bytes: int = 2**30
    """Size of the spool of one rank at most; the oldest detail goes first, scalars last."""
    flush_every_s: float = 1.0
    """Longest time that steps wait for their batch, and so the most that SIGKILL costs."""
    batch_steps: int = 256
    """A batch goes out after flush_every_s or this many steps."""
    memory_rows: int = 20_000
    """Steps kept in memory where there is no spool; beyond, the oldest are dropped and counted."""
    memory_bytes: int = 64 * 2**20
    """Size of them at most; beyond, the oldest lose their statistics, then go."""
    request_timeout_s: float = 10.0
    """Longest time for one request to the server."""
    close_timeout_s: float = 10.0
    """Longest wait of finish() for the last rows to be delivered."""
    compress: bool = True
    """Bodies of requests are compressed (gzip)."""
    strict: bool = False
    """Raise the agent's own failures instead of swallowing them (tests)."""

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, if the launcher says."""
        return self.launch.world_size


def option_names() -> tuple[str, ...]:
    """Settings that ``watch(**config)`` takes beside its named arguments."""
    named = {"run", "project", "run_id", "baseline", "mode", "rank", "launch"}
    return tuple(f.name for f in fields(MonitorConfig) if f.name not in named)


def from_env(
    options: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> tuple[MonitorConfig, list[str]]:
    """A checked configuration and the complaints about environment variables that were ignored.

    options: fields of MonitorConfig given by the caller; None counts as not given.  env: ``os.environ`` if
    None. Raises TypeError for an unknown key, ValueError for a value that cannot be.
    """
    env = os.environ if env is None else env
    given = {key: value for key, value in options.items() if value is not None}
    known = {f.name for f in fields(MonitorConfig)}
    for key in given:
        if key not in known:
            raise TypeError(
                f"floatscope.watch() got an unknown setting {key!r}; known are {', '.join(option_names())}"
            )
    complaints: list[str] = []
    launch = _launch(env)
    given.setdefault("rank", launch.rank or 0)
    given.setdefault("url", _url(env.get("FLOATSCOPE_URL"), complaints))
    given.setdefault("token", _env_token(env.get("FLOATSCOPE_TOKEN"), complaints))
    given.setdefault("spool_dir", env.get("FLOATSCOPE_SPOOL_DIR") or DEFAULT_SPOOL_DIR)
    given.setdefault("mode", "server" if given["url"] else "local")
    if "coordinates" not in given and env.get("FLOATSCOPE_COORDINATES"):
        given["coordinates"] = _env_coordinates(env["FLOATSCOPE_COORDINATES"], complaints)
    given["preflight"] = _preflight(given.get("preflight"), env.get("FLOATSCOPE_PREFLIGHT"), complaints)
    if "run_id" not in given:
        given["run_id"] = _env_run_id(env.get("FLOATSCOPE_RUN_ID"), complaints)
    given["spool_dir"] = Path(given["spool_dir"]).expanduser()
    if given.get("log_path") is not None:
        given["log_path"] = Path(given["log_path"]).expanduser()
    config = MonitorConfig(**given, launch=launch)
    _check(config)
    return config, complaints


def _check(config: MonitorConfig) -> None:
    try:
        check_name(config.run, field="run")
        check_name(config.project, field="project")
        if config.run_id is not None:
            check_run_id(config.run_id, field="run_id")
        if config.baseline is not None:
            check_run_id(config.baseline, field="baseline")
    except ProtocolError as error:
        raise ValueError(f"floatscope.watch(): {error}") from error
    if config.token is not None and not _is_token(config.token):
        raise ValueError("floatscope.watch(): token: expected printable ASCII characters without spaces")
    if config.mode not in MODES:
        raise ValueError(
            f"floatscope.watch(): mode: expected one of {', '.join(MODES)} or None, got {config.mode!r}"
        )
    if config.mode == "server" and not config.url:
        raise ValueError('floatscope.watch(): mode="server" needs url=... or the variable FLOATSCOPE_URL')
    if config.url is not None and not is_url(config.url):
        raise ValueError(f"floatscope.watch(): url: expected http(s)://host[:port], got {config.url!r}")
    for name, low, high in (
        ("rank", 0, 2**31 - 1),
        ("stats_every", 1, 2**31 - 1),
        ("batch_steps", 1, MAX_STEPS),
        ("memory_rows", 1, 10_000_000),
        ("memory_bytes", 2**20, 2**40),
        ("copy_budget_bytes", 0, 2**40),
        ("layer_offset", 0, 2**20),
        ("clean_after", 0, 1_000_000),
        ("most_captures", 0, 10_000),
        ("recorder_steps", 0, 1_000_000),
        ("recorder_bytes", 2**16, 2**36),
        ("spool_bytes", 2**20, 2**50),
    ):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(
                f"floatscope.watch(): {name}: expected a whole number from {low} to {high}, got {value!r}"
            )
    for name, known in (("stop_on", ("warning", "critical", "never")), ("check_format", tuple(FORMATS))):
        value = getattr(config, name)
        if value is not None and value not in known:
            raise ValueError(
                f"floatscope.watch(): {name}: expected one of {', '.join(known)} or None, got {value!r}"
            )
    if not _are_coordinates(config.coordinates):
        raise ValueError(
            "floatscope.watch(): coordinates: expected whole numbers from 0 up by any of "
            f"{', '.join(DIMENSIONS)}, got {config.coordinates!r}"
        )
    if config.on_finding is not None and not callable(config.on_finding):
        raise ValueError(
            f"floatscope.watch(): on_finding: expected a function of one finding, got {config.on_finding!r}"
        )
    if not isinstance(config.stop_confidence, int | float) or not 0 <= config.stop_confidence <= 1:
        raise ValueError(
            f"floatscope.watch(): stop_confidence: expected 0 to 1, got {config.stop_confidence!r}"
        )
    for name in ("flush_every_s", "request_timeout_s", "close_timeout_s", "gpu_every_s"):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise ValueError(f"floatscope.watch(): {name}: expected seconds, 0 or more, got {value!r}")


def is_url(url: object) -> TypeGuard[str]:
    """Whether it is the address of a server."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _url(value: str | None, complaints: list[str]) -> str | None:
    if not value:
        return None
    if is_url(value):
        return value
    complaints.append(
        f"FLOATSCOPE_URL is {value!r}, which is no address like http://host:8321; it is ignored, "
        "the run is written to a local file instead."
    )
    return None


def _is_token(token: object) -> bool:
    """Whether it can stand in a header. What cannot is never repeated in a message: it is a secret."""
    return isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token


def _env_token(value: str | None, complaints: list[str]) -> str | None:
    token = (value or "").strip()  # a line end comes along easily when a token is read from a file
    if not token or _is_token(token):
        return token or None
    complaints.append("FLOATSCOPE_TOKEN holds characters that no token has; it is ignored.")
    return None


def _env_run_id(value: str | None, complaints: list[str]) -> str | None:
    if not value:
        return None
    try:
        return check_run_id(value, field="FLOATSCOPE_RUN_ID")
    except ProtocolError as error:
        complaints.append(f"{error}; it is ignored.")
        return None


def _preflight(given: object, path: str | None, complaints: list[str]) -> dict[str, Any] | bool | None:
    """What goes with the run: a checked document, None for what the agent sees itself, False for nothing."""
    if isinstance(given, bool):
        return None if given else False
    try:
        if given is not None:
            return given_preflight(given)
    except PreflightRefused as error:
        raise ValueError(f"floatscope.watch(): preflight: {error}") from error
    try:
        return given_preflight(path) if path else None
    except PreflightRefused as error:
        complaints.append(f"FLOATSCOPE_PREFLIGHT: {error}; it is ignored.")
        return None


def _are_coordinates(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        name in DIMENSIONS and type(at) is int and 0 <= at < 2**31 for name, at in value.items()
    )


def _env_coordinates(value: str, complaints: list[str]) -> dict[str, int]:
    parts = [part.partition("=") for part in value.replace(" ", "").split(",")]
    found = {name: int(at) if at.isdecimal() and len(at) < 10 else -1 for name, _, at in parts}
    if _are_coordinates(found):
        return found
    complaints.append(
        f"FLOATSCOPE_COORDINATES is {value!r}, expected something like dp=0,tp=1; it is ignored."
    )
    return {}


def _launch(env: Mapping[str, str]) -> Launch:
    def number(*names: str) -> int | None:
        for name in names:
            text = env.get(name, "")
            if text.isdecimal() and len(text) < 10:
                return int(text)
        return None

    elastic = env.get("TORCHELASTIC_RUN_ID")
    job_id = elastic if elastic and elastic != "none" else env.get("SLURM_JOB_ID")
    if not job_id and env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        job_id = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    world_size = number("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    return Launch(
        rank=number("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
        local_rank=number("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
        world_size=world_size if world_size else None,
        job_id=job_id or None,
    )
