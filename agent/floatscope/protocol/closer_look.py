"""What a diagnosis asks of the probes while a finding is fresh: every step, of the layers in question.

A server sends it in its answers as ``settings``, the diagnosis in the trainer hands it over.

A finding that names layers is decided by them and by what stands beside them: rules compare a tensor with
its class, and tell the layer where a fault begins from those it reaches. So the layers before and after come
along, and never so few are asked for that a class of tensors has no middle. A finding about the whole run
asks for everything.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from floatscope.protocol.judgement import findings_of
from floatscope.protocol.names import split_tensor

Tensors = Mapping[str, Mapping[str, Any]]

STEPS = 200  # how long every step is asked for after a finding was proven
MOST_LAYERS = 64  # an agent takes no more by name
LEAST_LAYERS = 16  # a class needs 4 tensors for a middle of its own, and some are silent
NEIGHBOURS = 2  # layers before and after each suspect
WIDE_SHARE = 0.5  # of the run's tensors: it is about the run
CACHED_RUNS = 128
_RANGE = re.compile(r"(\d+)-(\d+)")


class CloserLook:
    """Makes settings for answers; remembers the order of each run's layers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: OrderedDict[int, tuple[Tensors, tuple[str, ...]]] = OrderedDict()

    def settings(
        self, verdict: Mapping[str, Any] | None, *, last_step: int, run: int, tensors: Tensors
    ) -> dict[str, Any]:
        """Empty where nothing is fresh, or it is about steps that the run has gone back over; ``layers`` only
        where a part of them is enough.

        run: key of the run.  tensors: its table.
        """
        fresh = [
            finding
            for finding in (verdict or {}).get("findings", [])
            if finding.get("severity") in ("warning", "critical")
            and finding.get("state") not in ("recovered", "replaced")
            and last_step - (finding.get("detected_step") or 0) < STEPS
        ]
        gone = {f.id for f in findings_of(verdict or {}) if f.rolled_back} if fresh else set()
        fresh = [finding for finding in fresh if finding.get("id") not in gone]
        if not fresh:
            return {}
        asked: dict[str, Any] = {
            "stats_every": 1,
            "until_step": max(finding.get("detected_step") or 0 for finding in fresh) + STEPS,
        }
        layers = suspects(fresh, order=self._order(run, tensors), tensors=len(tensors))
        if layers:
            asked["layers"] = layers
        return asked

    def _order(self, run: int, tensors: Tensors) -> tuple[str, ...]:
        """The run's layers in the order of their first call."""
        with self._lock:
            cached = self._orders.get(run)
        if cached is not None and cached[0] is tensors:
            return cached[1]
        order = layers_in_order(tensors)
        with self._lock:
            self._orders[run] = tensors, order
            while len(self._orders) > CACHED_RUNS:
                self._orders.popitem(last=False)
        return order


def layers_in_order(tensors: Tensors) -> tuple[str, ...]:
    """Layers by their first forward call; those whose call is not known last, by name."""
    calls: dict[str, float] = {}
    for name, facts in tensors.items():
        layer = split_tensor(name)[0]
        call = facts.get("call_order")
        known = float(call) if isinstance(call, int) else float("inf")
        calls[layer] = min(known, calls.get(layer, known))
    return tuple(sorted(calls, key=lambda layer: (calls[layer], layer)))


def suspects(
    findings: Sequence[Mapping[str, Any]], *, order: Sequence[str], tensors: int
) -> list[str] | None:
    """The layers to look at, in order; None for all of them.

    findings: of a verdict.  order: all layers.  tensors: how many the run has.
    """
    if len(order) <= LEAST_LAYERS:
        return None
    place = {layer: at for at, layer in enumerate(order)}
    named: set[int] = set()
    for finding in findings:
        layers = _named(finding, order)
        if layers is None or (finding.get("affected_tensors") or 0) > WIDE_SHARE * tensors:
            return None
        named |= {place[layer] for layer in layers if layer in place}
    if not named or len(named) > MOST_LAYERS:
        return None
    chosen = _with_neighbours(named, len(order))
    return None if len(chosen) == len(order) else [order[at] for at in sorted(chosen)]


def _named(finding: Mapping[str, Any], order: Sequence[str]) -> set[str] | None:
    """Layers that a finding names, and those that it wishes to be logged; None where it means all."""
    layer = finding.get("layer")
    if not isinstance(layer, str):
        return None
    found = {layer}
    for evidence in finding.get("evidence") or ():
        if isinstance(evidence, Mapping) and isinstance(evidence.get("tensor"), str):
            found.add(split_tensor(evidence["tensor"])[0])
    for wish in finding.get("log_next") or ():
        wished = wish.get("tensors") if isinstance(wish, Mapping) else None
        if isinstance(wished, str):
            span = split_tensor(wished)[0]
            if span == "*":
                return None
            found |= _spanned(span, order)
    return found


def _spanned(span: str, order: Sequence[str]) -> set[str]:
    """Layers that a verdict's pattern means: a name, or a range of numbers, ``layers.0-3`` or with ``.*``."""
    numbers = _RANGE.search(span)
    if numbers is None:
        return {span} & set(order)
    low, high = int(numbers[1]), int(numbers[2])
    tail = ".*" if span[numbers.end() :] == ".*" else re.escape(span[numbers.end() :])
    pattern = re.compile(re.escape(span[: numbers.start()]) + r"(\d+)" + tail, re.DOTALL)
    found = ((layer, pattern.fullmatch(layer)) for layer in order)
    return {layer for layer, match in found if match is not None and low <= int(match[1]) <= high}


def _with_neighbours(named: set[int], count: int) -> set[int]:
    """Places of the named layers and of those around them, nearest first, as far as there is room."""
    chosen = set(named)
    for away in range(1, count):
        if away > NEIGHBOURS and len(chosen) >= LEAST_LAYERS:
            break
        for at in sorted(named):
            for near in (at - away, at + away):
                if 0 <= near < count and len(chosen) < MOST_LAYERS:
                    chosen.add(near)
    return chosen
