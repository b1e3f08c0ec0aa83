"""How NaN and Inf spread: the first tensor, then what followed in call order, as cards in a row.

Within a step the order is that of the network: weights and scales are there before the forward pass, then
come activations by call order, the loss, gradients backwards, and what the optimizer makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from floatscope.protocol.names import BACKWARD_ROLES, split_tensor
from floatscope_dashboards.heat_grid import short_layer
from floatscope_dashboards.pictures_view import FirstBad, PathView
from floatscope_dashboards.say import Say, later

WEIGHTS, SCALES, FORWARD, LOSS, BACKWARD, UPDATES = range(6)
"""What a node is about, in the order in which a step makes it."""
SCALAR_PHASE = {"loss": LOSS, "grad_norm": UPDATES, "update_norm": UPDATES, "param_norm": UPDATES}
MAX_NODES = 9
_NO_ORDER = 1 << 40

_GROUPS = {
    WEIGHTS: (later("weights"), later("NaN or Inf in {n} of {all} weights.")),
    SCALES: (later("scales"), later("{n} more scales are not finite or not usable.")),
    FORWARD: (later("activations"), later("NaN or Inf in {n} more of {all} activations.")),
    BACKWARD: (later("gradients"), later("NaN or Inf in {n} of {all} gradients of activations.")),
    UPDATES: (later("weight updates"), later("Gradient or update of {n} weights is not finite.")),
}


@dataclass(frozen=True)
class Node:
    """One card. words: whether the name is in words, not a tensor's."""

    when: str
    name: str
    text: str
    where: str = ""
    href: str = ""
    words: bool = False
    is_root: bool = False
    is_bad: bool = True


@dataclass(frozen=True)
class Path:
    """The whole card."""

    title: str
    sub: str
    nodes: tuple[Node, ...]
    notes: tuple[str, ...] = ()


def nan_path(view: PathView | None, verdict: Mapping[str, Any], say: Say, *, run: str) -> Path | None:
    """None while everything was finite."""
    if view is None:
        return None
    cause, said = _cause(view, verdict, say, run=run)
    nodes = [node for _key, node in sorted(_nodes(view, say, run=run), key=lambda pair: pair[0])]
    if said and nodes:
        nodes[0] = replace(nodes[0], text=said)
    if cause is not None:
        nodes = [cause, *nodes]
    elif nodes:
        nodes[0] = replace(nodes[0], is_root=True)
    where = _where(view, say)
    first = say("First value that is not finite at step {step}", step=say.step(view.first))
    return Path(
        title=say("How NaN and Inf spread"),
        sub=f"{first}, {where}" if where else first,
        nodes=tuple(nodes[:MAX_NODES]),
        notes=tuple(_notes(view, say)),
    )


def phase(one: FirstBad) -> int:
    """What a tensor that is not finite belongs to."""
    role = split_tensor(one.tensor)[1]
    if one.stat in ("gradient", "update"):
        return UPDATES
    if one.stat == "scale":
        return SCALES
    if role == "weight":
        return WEIGHTS
    return BACKWARD if role in BACKWARD_ROLES else FORWARD


def in_order(tensors: Sequence[FirstBad]) -> list[FirstBad]:
    """As the network meets them: by step, then by phase, forward by call order, backward from its end."""

    def key(one: FirstBad) -> tuple[int, int, int, str]:
        order = _NO_ORDER if one.order is None else one.order
        back = phase(one) in (BACKWARD, UPDATES)
        return one.step, phase(one), -order if back and one.order is not None else order, one.tensor

    return sorted(tensors, key=key)


def _nodes(view: PathView, say: Say, *, run: str) -> list[tuple[tuple[int, int, int], Node]]:
    """Nodes with the key that puts them in order: step, phase, and which of its phase."""
    found: list[tuple[tuple[int, int, int], Node]] = []
    ordered = in_order(view.tensors)
    of_role = dict(view.counts)
    totals = {
        WEIGHTS: of_role.get("weight", 0),
        FORWARD: of_role.get("input", 0) + of_role.get("output", 0),
        BACKWARD: sum(of_role.get(role, 0) for role in BACKWARD_ROLES),
    }
    for at in dict.fromkeys(phase(one) for one in ordered):
        mine = [one for one in ordered if phase(one) == at]
        begun = mine[0].step
        together = [one for one in mine if one.step == begun]
        if at in (FORWARD, SCALES) or (at == BACKWARD and len(mine) == 1):
            found.append(((begun, at, 0), _tensor_node(mine[0], say, run=run)))
            mine, together = mine[1:], together[1:]
        if not mine:
            continue
        number = _count(view, at) - (1 if at in (FORWARD, SCALES) else 0)
        name, text = _GROUPS[at]
        begun = mine[0].step
        said = say(text, n=f"{number:,}", all=f"{max(totals.get(at, 0), number):,}")
        spread = {one.step for one in mine}
        if len(spread) > 1:
            said += " " + say("The last of them at step {step}.", step=say.step(max(spread)))
        node = Node(_at(begun, say), _span(mine, say(name), say), said, words=len(mine) > 1)
        found.append(((begun, at, 1), node))
    for name, step, kind in view.scalars:
        place = SCALAR_PHASE.get(name, UPDATES)
        if place == LOSS or not any(key[1] == place for key, _node in found):
            words = {"loss": say("loss"), "grad_norm": say("gradient norm")}.get(name, name)
            text = (
                say("The loss is {kind}.", kind=kind) if name == "loss" else say("It is {kind}.", kind=kind)
            )
            found.append(((step, place, 0), Node(_at(step, say), words, text, words=True)))
    return found


def _tensor_node(one: FirstBad, say: Say, *, run: str) -> Node:
    href = f"/runs/{quote(run, safe='')}/tensors/{quote(one.tensor, safe='')}?at={one.step}"
    parts = []
    if one.stat == "scale":
        parts.append(say("Its scale is not finite or not usable."))
    if one.nan:
        parts.append(say.plural("{n} value is NaN.", "{n} values are NaN.", int(one.nan)))
    if one.inf:
        parts.append(say.plural("{n} value is Inf.", "{n} values are Inf.", int(one.inf)))
    if not parts:
        parts.append(say("It holds NaN or Inf."))
    return Node(_at(one.step, say), one.tensor, say.sentences(parts), href=href)


def _count(view: PathView, at: int) -> int:
    """Tensors of a phase, also those that are not listed."""
    shared = FirstBad(0, "", "")
    by_stat: dict[str, int] = {}
    for group in view.groups:
        if phase(replace(shared, tensor=f"x/{group.role}", stat=group.stat)) == at:
            by_stat[group.stat] = by_stat.get(group.stat, 0) + group.tensors
    return max(by_stat.values(), default=0)


def _span(mine: Sequence[FirstBad], name: str, say: Say) -> str:
    """A few tensors by name, many as what they are."""
    if len(mine) == 1:
        return mine[0].tensor
    first, last = (short_layer(split_tensor(one.tensor)[0]) for one in (mine[0], mine[-1]))
    return say("{what}: {first} \u2026 {last}", what=name, first=first, last=last)


def _at(step: int, say: Say) -> str:
    return say("Step {step}", step=say.step(step))


def _where(view: PathView, say: Say) -> str:
    if view.ranks < 2:
        return ""
    if view.others:
        return say(
            "on rank {rank} and {n} others of {all} looked at",
            rank=view.rank,
            n=len(view.others),
            all=view.looked_at,
        )
    if view.looked_at < view.ranks:
        return say("on rank {rank}, the first of {n} ranks looked at", rank=view.rank, n=view.looked_at)
    return say("on rank {rank}", rank=view.rank)


def _cause(view: PathView, verdict: Mapping[str, Any], say: Say, *, run: str) -> tuple[Node | None, str]:
    """Where the diagnosis says it comes from; if that is the first tensor itself, only what it says of it."""
    for item in verdict.get("findings", ()):
        onset = item.get("onset_step")
        if not isinstance(onset, int) or onset > view.first or item.get("replaced_by"):
            continue
        summary = say.engine(str(item.get("summary") or ""))
        if item.get("cause") == "invalid_input":
            return Node(_at(onset, say), say("the batch"), summary, words=True, is_root=True), ""
        tensor = item.get("tensor")
        first = in_order(view.tensors)[:1]
        is_same = bool(first) and first[0].tensor == tensor and first[0].step == onset
        if is_same or not summary:
            return None, summary
        resolved = item.get("resolved_step")
        if isinstance(resolved, int) and resolved < view.first:
            continue
        href = ""
        if isinstance(tensor, str):
            href = f"/runs/{quote(run, safe='')}/tensors/{quote(tensor, safe='')}?at={onset}"
        name = tensor if isinstance(tensor, str) else say("the run")
        words = not href
        return Node(_at(onset, say), name, summary, href=href, words=words, is_root=True, is_bad=False), ""
    return None, ""


def _notes(view: PathView, say: Say) -> list[str]:
    notes = []
    if len(view.tensors) == 1 and not view.scalars:
        notes.append(say("Nothing else was seen to be NaN or Inf soon after."))
    steps = [one.step for one in view.tensors]
    scalars = [step for _name, step, _kind in view.scalars]
    if scalars and (not steps or min(steps) > min(scalars)):
        notes.append(
            say(
                "No tensor was seen to hold NaN or Inf up to the step of the loss; those that were measured "
                "later are shown where they were first seen."
            )
            if steps
            else say("No tensor was seen to hold NaN or Inf.")
        )
    return notes
