"""What `--inject` accepts and how it refuses the rest."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope_trainer.faults.catalog import describe_faults, make_fault, reachable
from floatscope_trainer.faults.injection import Injection, InjectionError, parse_injection
from floatscope_trainer.faults.kinds import FAULTS, FaultKind
from tests.trainer.small_runs import scene_of, tiny_training


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nan_input@100", Injection("nan_input", 100)),
        ("lr_spike@0*2.5", Injection("lr_spike", 0, strength=2.5)),
        ("stale_scale@80:b.fc1/input*16", Injection("stale_scale", 80, "b.fc1/input", 16.0)),
        ("round_to_zero@50:*/input", Injection("round_to_zero", 50, "*/input")),
        ("round_to_zero@50:*", Injection("round_to_zero", 50, "*")),
        ("history_poison@7:*/input*1e5", Injection("history_poison", 7, "*/input", 1e5)),
        ("history_poison@7:**1e5", Injection("history_poison", 7, "*", 1e5)),
        ("scale_nan@7:blocks.[01].*/weight", Injection("scale_nan", 7, "blocks.[01].*/weight")),
    ],
)
def test_reads(text: str, expected: Injection) -> None:
    assert parse_injection(text) == expected


@pytest.mark.parametrize("text", ["", "nan_input", "@5", "nan_input@", "nan_input@-1", "nan_input@1.5",
                                  "nan_input@x", "lr_spike@5*nan", "lr_spike@5*inf", "NaN@5"])  # fmt: skip
def test_refuses_what_has_another_form(text: str) -> None:
    with pytest.raises(InjectionError, match=r"expected|must be"):
        parse_injection(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InjectionError):
        parse_injection(text)


def aim(text: str, **precision: str) -> None:
    scene = scene_of(tiny_training(**precision))
    make_fault(parse_injection(text), scene, first_step=10, steps=20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gremlin@12", "there is no such fault; the faults are nan_input"),
        ("nan_input@9", "this run trains steps 10 to 19"),
        ("nan_input@20", "this run trains steps 10 to 19"),
        ("nan_input@12:blocks.0.attn.qkv/input", "it acts on no tensor"),
        ("nan_input@12*4", "it takes no strength"),
        ("stale_scale@12", "needs a tensor to act on, as in stale_scale@12:blocks.0.attn.qkv/input"),
        ("wrong_op@12", "needs a layer/output to act on, as in wrong_op@12:blocks.0.attn.qkv/output"),
        ("stale_scale@12:blocks.7.*", "no tensor matches 'blocks.7.*'"),
        ("bit_flip@12:blocks.0.attn.qkv/input", "it acts on a layer/weight: blocks.0.attn.qkv/weight"),
        ("bit_flip@12:*/weight*32", "from 0 to 31"),
        ("lr_spike@12*-1", "from 0 to"),
    ],
)
def test_refuses_what_cannot_be_aimed(text: str, message: str) -> None:
    with pytest.raises(InjectionError) as error:
        aim(text)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["scale_frozen@12", "history_poison@12:*", "round_to_zero@12"])
def test_refuses_a_run_that_has_nothing_of_the_kind(text: str) -> None:
    with pytest.raises(InjectionError, match="this run has none"):
        aim(text, precision="bf16")


def test_refuses_state_faults_without_state() -> None:
    with pytest.raises(InjectionError, match="needs a tensor with delayed scaling, and this run has none"):
        aim("scale_frozen@12", recipe="current")


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_every_fault_can_be_made_and_is_listed(kind: FaultKind) -> None:
    aim(f"{kind.name}@12" + (":blocks.0.mlp.fc1/*" if kind.needs_tensor else ""))
    assert f"  {kind.name}: " in describe_faults()


def test_names_are_unique() -> None:
    assert len({kind.name for kind in FAULTS}) == len(FAULTS) >= 17


def test_tensors_are_in_call_order() -> None:
    names = reachable("delayed", scene_of(tiny_training()))
    assert names[:4] == [
        "blocks.0.attn.qkv/input",
        "blocks.0.attn.qkv/weight",
        "blocks.0.attn.qkv/grad_output",
        "blocks.0.attn.proj/input",
    ]
