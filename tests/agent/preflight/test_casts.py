"""Casts as they are tried here, and as other versions and devices would answer."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from floatscope.preflight.cast_checks import cast_checks
from floatscope.preflight.cast_probe import FORMATS, VALUES, probe
from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.table_reading import read_table

PATTERNS = read_table("casts")["patterns"]
MI300X = GpuFacts(0, "AMD Instinct MI300X", None, None, "gfx942")


def checks(
    measured: dict[str, Any], wanted: Wanted | None = None, facts: Facts | None = None
) -> dict[str, Check]:
    return {one.name: one for one in cast_checks(facts or Facts(), wanted or Wanted(), measured)}


def test_what_is_tried_here_is_what_torch_does() -> None:
    found = probe()
    assert found["tried"] == [str(value) for value in VALUES]
    for short, name in FORMATS.items():
        really = torch.tensor(VALUES).to(getattr(torch, name)).float().tolist()
        assert found[f"{short} from float32 on cpu, eager"] == [str(value) for value in really]
    assert found["saturating_cast"] == (found["e4m3 from float32 on cpu, eager"][3] == "448.0")


def test_this_torch_is_in_none_of_the_unknown_ways() -> None:
    found = checks(probe())
    assert {one.name.split(".")[1] for one in found.values()} == {*FORMATS, "compiled"}
    assert {one.status for one in found.values()} <= {"pass", "warn", "not_applicable"}
    assert not any("(other)" in one.read for one in found.values())


@pytest.mark.parametrize(
    ("form", "kind"), [(form, kind) for form, kinds in PATTERNS.items() for kind in kinds]
)
def test_every_pattern_has_its_words_and_source(form: str, kind: str) -> None:
    key = f"{form} from float32 on cpu, eager"
    found = checks({key: PATTERNS[form][kind]}, Wanted(library="torch"), Facts(gpus=(MI300X,)))
    one = found[f"casts.{form}.cpu"]
    assert f"({kind})" in one.read
    text = read_table("casts")["texts"][f"{form}/{kind}"]
    assert (one.why, one.source) == (text["why"], text["source"])
    assert one.status == ("pass" if kind in ("saturates", "rounds_up") else "warn")
    assert bool(one.do) == (one.status == "warn")


@pytest.mark.parametrize(
    ("library", "recipe", "status"),
    [("transformer_engine", "", "pass"), ("", "mxfp8", "pass"), ("torchao", "ao_rowwise", "pass"),
     ("torch", "fp8_current_scaling", "warn"), ("", "", "warn"), ("torch", "bf16", "pass")],
)  # fmt: skip
def test_a_library_that_clamps_makes_an_unsaturating_cast_harmless(
    library: str, recipe: str, status: str
) -> None:
    measured = {"e4m3 from float32 on cpu, eager": PATTERNS["e4m3"]["to_nan"]}
    assert checks(measured, Wanted(library=library, recipe=recipe))["casts.e4m3.cpu"].status == status


def test_formats_of_mi300_matter_on_one_only() -> None:
    measured = {"e4m3fnuz from float32 on cpu, eager": PATTERNS["e4m3fnuz"]["to_nan"]}
    assert checks(measured)["casts.e4m3fnuz.cpu"].status == "not_applicable"
    assert checks(measured, None, Facts(gpus=(MI300X,)))["casts.e4m3fnuz.cpu"].status == "warn"


def test_a_result_of_no_known_kind_and_one_that_raised() -> None:
    strange = checks({"e4m3 from float32 on cpu, eager": ["1.0"] * len(VALUES)})["casts.e4m3.cpu"]
    assert (strange.status, "(other)" in strange.read) == ("warn", True)
    raised = checks({"e4m3 from float32 on cuda, eager": "RuntimeError: no kernel"})["casts.e4m3.cuda"]
    assert (raised.status, "no kernel" in raised.read) == ("unknown", True)


def test_compiled_casts_that_differ_or_could_not_be_made() -> None:
    eager = {"e4m3 from float32 on cpu, eager": PATTERNS["e4m3"]["saturates"]}
    name = "casts.e4m3.cpu.compiled"
    for value, status in [
        (PATTERNS["e4m3"]["saturates"], "pass"),
        (PATTERNS["e4m3"]["to_nan"], "warn"),
        ("no answer within 90 s", "unknown"),
    ]:
        found = checks({**eager, "e4m3 from float32 on cpu, compiled": value})
        assert found[name].status == status
        assert "casts.compiled" not in found
    assert checks(eager)["casts.compiled"].status == "not_applicable"


def test_a_gpu_that_casts_otherwise_is_said() -> None:
    measured = {
        "e4m3 from float32 on cpu, eager": PATTERNS["e4m3"]["saturates"],
        "e4m3 from float32 on cuda, eager": PATTERNS["e4m3"]["to_nan"],
    }
    assert checks(measured)["casts.e4m3.from_float32.devices"].status == "warn"
    measured["e4m3 from float32 on cuda, eager"] = PATTERNS["e4m3"]["saturates"]
    assert "casts.e4m3.from_float32.devices" not in checks(measured)


def test_without_torch_nothing_is_tried_and_that_is_unknown() -> None:
    (only,) = cast_checks(Facts(), Wanted(), {})
    assert only.status == "unknown"
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from floatscope.preflight.cast_probe import probe\n"
        "from floatscope.preflight.smoke_run import smoke\n"
        "from floatscope.preflight.facts import Facts, Wanted\n"
        "assert probe() == {}\n"
        "rows, (check,) = smoke(Facts(), Wanted())\n"
        "assert rows == [] and check.status == 'unknown', check\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
