"""Transformer Engine's debug API, switched on with floatscope's feature in it.

The package decides when its first module is built whether modules ask the debug API at all, so this comes
before the model, and ``floatscope.watch`` after it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from floatscope.config import from_env
from floatscope.guard import Guard
from floatscope.probes.te_features import directory
from floatscope.probes.te_watchers import FEATURE, TENSORS, feature_watchers

SECTION = "floatscope"
"""Name of the section that is added to a configuration of nvdlfw-inspect."""


def te_debug(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    feature_dirs: Sequence[str] = (),
    log_dir: str | Path | None = None,
    **options: Any,
) -> bool:
    """Switches Transformer Engine's debug API on, so that ``watch`` sees whole tensors of every recipe.

    Call it on every rank before the first Transformer Engine module is built; it needs nvdlfw-inspect.
    config: your own configuration (a YAML file or its content), whose features go on working beside ours;
    where you have one, call ``nvdlfw_inspect.api.step()`` each step yourself. feature_dirs: folders of your
    own features. log_dir: where nvdlfw-inspect writes its logs, by default beside floatscope's. options:
    further arguments of ``nvdlfw_inspect.api.initialize``.

    Returns whether it is on. What is missing is said in the log, not raised: training goes on without.
    """
    settings, _ = from_env({"run": SECTION})
    guard = Guard(speaks=settings.rank == 0)
    if not _is_installed("transformer_engine"):
        guard.say("te_debug: Transformer Engine is not installed; nothing to inspect.")
        return False
    if not _is_installed("nvdlfw_inspect"):
        guard.say(
            "te_debug: statistics of whole FP8 tensors need nvdlfw-inspect: pip install nvdlfw-inspect. "
            "Training goes on without them."
        )
        return False
    folder = Path(log_dir).expanduser() if log_dir is not None else settings.spool_dir / "te_debug"
    switching = guard.area("te_debug", loses="statistics of whole FP8 tensors")
    is_on = False
    with switching:
        is_on = _switch_on(config, feature_dirs, folder, options, guard)
    if switching.failures:
        with switching:
            _forget_half()
    return is_on


def _switch_on(
    config: str | Path | Mapping[str, Any] | None,
    feature_dirs: Sequence[str],
    folder: Path,
    options: Mapping[str, Any],
    guard: Guard,
) -> bool:
    api = importlib.import_module("nvdlfw_inspect.api")
    if api.DEBUG_MANAGER is not None:
        if feature_watchers() is not None:
            return True
        guard.say(
            "te_debug: nvdlfw-inspect is initialised already, without floatscope's feature. Call "
            "floatscope.te_debug(config=..., feature_dirs=...) in place of nvdlfw_inspect.api.initialize."
        )
        return False
    state = getattr(sys.modules.get("transformer_engine.debug.pytorch.debug_state"), "TEDebugState", None)
    if getattr(state, "debug_enabled", None) is False:
        guard.say(
            "te_debug: Transformer Engine modules exist already, and they will not ask the debug API. Call "
            "floatscope.te_debug() before the first of them is built."
        )
        return False
    folder.mkdir(parents=True, exist_ok=True)
    try:
        api.initialize(
            config_file=debug_config(_load(config)),
            feature_dirs=[_own_features(), directory(), *feature_dirs],
            log_dir=str(folder),
            **options,
        )
    except SystemExit as error:  # its way to say that a feature could not be loaded
        raise RuntimeError(f"a feature could not be loaded; nvdlfw-inspect's log is in {folder}") from error
    return True


def debug_config(own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A configuration of nvdlfw-inspect with floatscope's feature on all layers.

    own: a configuration to join. Its sections keep what they have and get the feature too; layers that none
    of them names get a section of ours, which can be told only where all sections go by
    ``layer_name_regex_pattern``.
    """
    ours = {FEATURE: {"enabled": True, "tensors": list(TENSORS)}}
    found: dict[str, Any] = {}
    patterns: list[str | None] = []
    for name, section in (own or {}).items():
        if isinstance(section, Mapping) and section.get("enabled"):
            features = {**(section.get("transformer_engine") or {}), **ours}
            section = {**section, "transformer_engine": features}
            patterns.append((section.get("layers") or {}).get("layer_name_regex_pattern"))
        found[str(name)] = section
    known = [pattern for pattern in patterns if isinstance(pattern, str)]
    if len(known) == len(patterns):
        rest = f"^(?!.*(?:{'|'.join(known)}))" if known else ".*"
        re.compile(rest)
        found[SECTION] = {
            "enabled": True,
            "layers": {"layer_name_regex_pattern": rest},
            "transformer_engine": ours,
        }
    return found


def _load(config: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if config is None or isinstance(config, Mapping):
        return config
    text = Path(config).expanduser().read_text()
    try:
        loaded: Any = json.loads(text)
    except ValueError:
        loaded = importlib.import_module("yaml").safe_load(text)
    if loaded is not None and not isinstance(loaded, Mapping):
        raise ValueError(f"{config}: expected sections by name, got {type(loaded).__name__}")
    return loaded


def _own_features() -> str:
    """The folder of the package's own features, which also holds the namespace they belong to."""
    package = importlib.import_module("transformer_engine")
    return str(Path(str(package.__file__)).parent / "debug" / "features")


def _forget_half() -> None:
    """Takes back what a failed start has registered, so that a later one finds nothing."""
    api: Any = sys.modules.get("nvdlfw_inspect.api")
    registry = getattr(sys.modules.get("nvdlfw_inspect.registry"), "Registry", None)
    if getattr(api, "DEBUG_MANAGER", None) is not None:
        api.end_debug()
    elif registry is not None:
        registry.reset()


def _is_installed(package: str) -> bool:
    """Whether it can be imported; a module that something has put in its place counts."""
    return package in sys.modules or importlib.util.find_spec(package) is not None
