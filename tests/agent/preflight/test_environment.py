"""Variables that change numbers, names that nothing reads, settings that contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.preflight.check import STATUSES, Check
from floatscope.preflight.environment_checks import MOST_UNKNOWN, environment_checks
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.table_reading import read_table
from tests.agent.preflight.machines import gpu

TABLE = {one["name"]: one for one in read_table("environment")["variables"]}
H100 = gpu()
B200 = gpu("NVIDIA B200", (10, 0))


def checks(environment: dict[str, str], recipe: str = "", *gpus: GpuFacts) -> dict[str, Check]:
    found = environment_checks(Facts(environment=environment, gpus=gpus), Wanted(recipe=recipe))
    return {one.name: one for one in found}


def test_nothing_set_is_one_pass() -> None:
    (only,) = checks({"PATH": "/bin", "HOME": "/"}).values()
    assert only.status == "pass"


@pytest.mark.parametrize("name", TABLE)
def test_every_known_variable_is_said_with_its_effect_and_source(name: str) -> None:
    entry = TABLE[name]
    value = next(one for one in (*entry.get("values", []), "strange") if one != entry["default"])
    found = checks({name: value})[f"environment.{name}"]
    kind = read_table("environment")["kinds"][entry["kind"]]
    assert found.status == ("pass" if entry.get("only_with") else kind["status"])
    assert entry["effect"] in found.why or entry.get("only_with")
    assert f"{name}={value}" in found.read
    assert found.source == entry["source"]
    assert entry["source"]
    assert bool(found.do) == (found.status != "pass")


@pytest.mark.parametrize("name", [name for name, one in TABLE.items() if one["default"]])
def test_a_variable_at_its_default_passes(name: str) -> None:
    assert checks({name: TABLE[name]["default"]})[f"environment.{name}"].status == "pass"


@pytest.mark.parametrize("name", ["NVTE_NVFP4_DISABLE_RHT", "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING"])
def test_what_nvfp4_needs_on_rtx_blackwell_is_not_to_be_unset_there(name: str) -> None:
    rtx = gpu("NVIDIA GeForce RTX 5090", (12, 0))
    needed = checks({name: "1"}, "nvfp4", rtx)[f"environment.{name}"]
    assert (needed.status, needed.do) == ("pass", "")
    assert "12.x" in needed.why
    for recipe, gpus in (("nvfp4", (B200,)), ("fp8_current_scaling", (rtx,))):
        elsewhere = checks({name: "1"}, recipe, *gpus)[f"environment.{name}"]
        assert (elsewhere.status, "12.x" in elsewhere.do) == ("warn", False)
    open_ = checks({name: "1"}, "nvfp4")[f"environment.{name}"]
    assert (open_.status, "12.x" in open_.do) == ("warn", True)
    assert checks({name: "yes"}, "nvfp4", rtx)[f"environment.{name}"].status == "warn"


def test_a_value_that_is_none_of_those_known_is_said() -> None:
    found = checks({"NVTE_DPA_FP8_FORMAT": "E3M4"})["environment.NVTE_DPA_FP8_FORMAT"]
    assert found.status == "warn"
    assert "HYBRID" in found.do


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NVTE_UNFUSEDDPA_EMULATE_FP8", "NVTE_UnfusedDPA_Emulate_FP8"),
        ("nvte_dpa_fp8cs_o_in_f16", "NVTE_DPA_FP8CS_O_in_F16"),
        ("NVTE_FLASH_ATN", "NVTE_FLASH_ATTN"),
        ("NTVE_DEBUG", "NVTE_DEBUG"),
        ("NVTE-DEBUG", "NVTE_DEBUG"),
    ],
)
def test_a_name_that_is_nearly_one_is_told_which(written: str, meant: str) -> None:
    found = checks({written: "1"})[f"environment.unknown.{written}"]
    assert found.status == "warn"
    assert f"write {meant}" in found.do


def test_an_unknown_name_is_said_and_many_are_counted() -> None:
    assert "look the name up" in checks({"NVTE_ZZZZQQ": "1"})["environment.unknown.NVTE_ZZZZQQ"].do
    many = checks({f"NVTE_QQ{number:03}": "x" * 10_000 for number in range(MOST_UNKNOWN + 5)})
    assert "5 further" in many["environment.unknown"].read
    assert all(len(one.read) < 300 for one in many.values())


OVERRIDE = {"NVTE_BACKWARD_OVERRIDE": "dequantized"}
SCALES = {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}
HOLD: dict[str, tuple[str, dict[str, str]]] = {
    "backward_override_delayed": ("fp8_delayed_scaling", OVERRIDE),
    "fp32_block_scales": ("fp8_block_scaling", SCALES),
    "four_over_six_hadamard": ("nvfp4", {"NVTE_NVFP4_4OVER6": "all"}),
    "no_attention": ("", {f"NVTE_{one}_ATTN": "0" for one in ("FLASH", "FUSED", "UNFUSED")}),
    "fp8_attention_backend": ("", {"NVTE_FUSED_ATTN": "0", "NVTE_DPA_FP8_RECIPE_DPA": "1"}),
}


@pytest.mark.parametrize("row", read_table("environment_conflicts")["rows"], ids=lambda row: row["id"])
def test_every_conflict_fails_where_it_holds(row: dict[str, str]) -> None:
    recipe, environment = HOLD[row["id"]]
    found = checks(environment, recipe, B200)[f"environment.conflict.{row['id']}"]
    assert found.status == "fail"
    assert found.source == row["source"]
    assert found.do


def test_conflicts_that_do_not_hold_or_are_not_known() -> None:
    name = "environment.conflict.backward_override_delayed"
    assert name not in checks(OVERRIDE, "mxfp8")
    assert checks(OVERRIDE)[name].status == "unknown"
    name = "environment.conflict.fp32_block_scales"
    assert name not in checks(SCALES, "fp8_block_scaling", H100)
    assert checks(SCALES, "fp8_block_scaling")[name].status == "unknown"
    both = {"NVTE_NVFP4_4OVER6": "all", "NVTE_NVFP4_DISABLE_RHT": "1"}
    assert "environment.conflict.four_over_six_hadamard" not in checks(both, "nvfp4")


@settings(max_examples=60, deadline=None)
@given(
    environment=st.dictionaries(
        st.sampled_from(sorted(TABLE)) | st.text(max_size=12).map(lambda text: f"NVTE_{text}"),
        st.text(max_size=20),
        max_size=8,
    ),
    recipe=st.sampled_from(["", "nvfp4", "fp8_delayed_scaling", "bf16"]),
)
def test_any_environment_gives_checks(environment: dict[str, str], recipe: str) -> None:
    found = checks(environment, recipe)
    assert found
    assert {one.status for one in found.values()} <= set(STATUSES)
    assert len(found) >= len(environment.keys() & TABLE.keys())
