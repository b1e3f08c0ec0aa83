"""Every row of the tables has a source and says something where its conditions hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from floatscope.preflight.check import STATUSES
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.gpu_checks import gpu_checks, nvml_row
from floatscope.preflight.hardware_checks import hardware_checks
from floatscope.preflight.hardware_xids import xid_checks
from floatscope.preflight.recipe_matrix import recipe_check, recipe_rows
from floatscope.preflight.software_checks import software_checks, software_entries, software_rows
from floatscope.preflight.table_conditions import Condition, Situation, all_hold
from floatscope.preflight.table_reading import Row, answers, read_table
from floatscope.protocol.names import RECIPES
from tests.agent.preflight.machines import gpu, machine

RULES = [(entry, row) for entry in software_entries() for row in software_rows(entry)]


def one_below(text: str) -> str:
    """A version just under it: 12.1.3 -> 12.1.2.999, 13.0 -> 12.999."""
    parts = [int(part) for part in text.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    parts[-1] -= 1
    return ".".join(str(part) for part in [*parts, 999])


def satisfying(conditions: Sequence[Condition]) -> Situation:
    """A machine for which all these conditions hold: the newest version that each bound allows."""
    recipe, library, cards = "", "", GpuFacts(0, "", (9, 0), arch="sm_90")
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}
    installed = ["cuda"]
    for condition in conditions:
        if "recipe" in condition:
            recipe = condition["recipe"][0]
        elif "library" in condition:
            library = condition["library"][0]
        elif "capability" in condition:
            bounds = condition["capability"]
            text = bounds["min"] if "min" in bounds else one_below(bounds["below"]).replace(".999", ".0")
            major, minor = (int(part) for part in text.split(".")[:2])
            cards = GpuFacts(0, "", (major, minor), arch=f"sm_{major}{minor}")
        elif "arch" in condition:
            cards = GpuFacts(0, "", None, arch=condition["arch"][0])
        elif "env" in condition:
            environment[condition["env"]] = condition["is"][0]
        elif "below" in condition:
            versions[condition["fact"]] = one_below(condition["below"])
        elif "at_least" in condition:
            versions.setdefault(condition["fact"], condition["at_least"])
        elif "is" in condition:
            versions[condition["fact"]] = condition["is"][0]
        elif "major_below" in condition:
            versions |= {condition["fact"]: "12.8", condition["major_below"]: "13.0"}
        else:
            installed.append(condition["fact"])
    for name in installed:
        versions.setdefault(name, "12.9" if name == "cuda" else "1.0")
    of_torch = {"cuda": "cuda", "rocm": "hip", "cudnn": "cudnn", "nccl": "nccl"}
    facts = Facts(
        versions=versions,
        environment=environment,
        gpus=(cards,),
        driver=versions.get("driver", ""),
        cuda_driver=tuple(int(part) for part in versions.get("cuda_driver", "").split(".") if part),
        torch={key: versions[name] for name, key in of_torch.items() if name in versions},
        libraries={"cublaslt": versions["cublaslt"]} if "cublaslt" in versions else {},
    )
    return Situation(facts, recipe, library, cards)


@pytest.mark.parametrize("row", recipe_rows(), ids=lambda row: row.id)
def test_every_row_of_the_recipes_is_reached(row: Row) -> None:
    situation = satisfying(row.when)
    assert all_hold(row.when, situation), situation
    assert row.id in {answer.row for answer in answers(recipe_rows(), situation)}
    (check,) = recipe_check(situation.facts, Wanted(recipe=situation.recipe, library=situation.library))
    order = ("not_applicable", "pass", "warn", "unknown", "fail")
    assert order.index(check.status) >= order.index(row.status)
    if check.status == row.status:
        assert row.why in check.why


@pytest.mark.parametrize(("entry", "row"), RULES, ids=[row.id for _, row in RULES])
def test_every_rule_of_the_versions_is_reached(entry: dict[str, Any], row: Row) -> None:
    situation = satisfying([*entry["relevant"], *row.when, {"fact": entry["fact"], "installed": True}])
    library = situation.library or ("" if situation.recipe else "transformer_engine")
    wanted = Wanted(recipe=situation.recipe, library=library)
    checks = {check.name: check for check in software_checks(situation.facts, wanted)}
    check = checks[entry["name"]]
    assert check.status == row.status
    assert row.why in check.why
    assert row.source in check.source


def test_rows_are_complete() -> None:
    rows = [*recipe_rows(), *(row for _, row in RULES)]
    assert len({row.id for row in rows}) == len(rows) == 63 + len(RULES)
    for row in rows:
        assert len(row.source) > 8
        assert len(row.why) > 8
        assert row.status in STATUSES
        assert row.do or row.status in ("pass", "not_applicable"), row.id
        for condition in row.when:
            assert set(condition.get("recipe", ())) <= set(RECIPES)
            assert set(condition.get("library", ())) <= {"transformer_engine", "torchao", "torch"}
    for entry in software_entries():
        assert entry["source"]
        assert entry["why"]
        assert entry["absent"]["status"] in STATUSES


def test_what_was_never_confirmed_says_so() -> None:
    doubtful = [row for row in [*recipe_rows(), *(row for _, row in RULES)] if not row.verified]
    assert {row.id for row in doubtful} == {"te-thor", "driver-blackwell"}
    assert all(row.why.endswith("(not confirmed)") for row in doubtful)


@pytest.mark.parametrize("row", read_table("nvml")["errors"], ids=lambda row: row["id"])
def test_every_nvml_error_is_reached(row: dict[str, Any]) -> None:
    error = row["sign"][0] or "NVMLError_Unknown: Unknown Error"
    has_driver = row.get("kernel_driver", True)
    assert nvml_row(error, has_kernel_driver=has_driver) is row
    assert row["source"]
    libraries = {"kernel_driver": "580.65.06" if has_driver else ""}
    check = gpu_checks(Facts(nvml=error, libraries=libraries), Wanted())[0]
    assert (check.name, check.status, check.do) == ("gpu.nvml", row["status"], row["do"])
    assert row["meaning"] in check.read


@pytest.mark.parametrize("row", read_table("hardware")["throttle"], ids=lambda row: row["name"])
def test_every_throttle_bit_is_reached(row: dict[str, Any]) -> None:
    assert row["source"]
    facts = machine(gpu(throttle_reasons=row["bit"]))
    (check,) = [one for one in hardware_checks(facts, Wanted()) if one.name == "gpu.throttle"]
    assert check.status == row["status"]
    assert row["name"] in check.read


@pytest.mark.parametrize("row", read_table("xids")["xids"], ids=lambda row: str(row["xid"]))
def test_every_xid_is_reached(row: dict[str, Any]) -> None:
    assert row["source"]
    facts = machine(gpu(), libraries={"xids": [{"xid": row["xid"], "pci": "0000:1b:00"}] * 3})
    (check,) = xid_checks(facts, Wanted())
    assert check.status == row["status"]
    assert f"XID {row['xid']}, 3 times" in check.read
    assert ("not confirmed" in check.read) == (not row["verified"])


def test_lists_of_gpus_name_gpus_of_the_table() -> None:
    from floatscope.hardware.gpu_lookup import gpu_models

    names = {model.name for model in gpu_models()}
    table = read_table("hardware")
    for part in ("switched", "data_centre"):
        assert set(table[part]["names"]) <= names
        assert table[part]["source"]
    assert table["co_tenant"]["source"]
    assert table["fabric"]["source"]
    distributions = read_table("distributions")
    assert len(set(distributions["names"])) == len(distributions["names"])
    assert {name for names in distributions["libraries"].values() for name in names} <= set(
        distributions["names"]
    )
