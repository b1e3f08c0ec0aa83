"""Two preflights held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floatscope.preflight.against import against_checks, different_casts, different_versions
from floatscope.preflight.given import MAX_FILE_BYTES, PreflightRefused, given_preflight, read_preflight
from floatscope.protocol.strict_json import dumps
from tests.agent.preflight.made import check, preflight

OURS = preflight([check("a", "pass")], casts={"saturating_cast": True}).to_json()


def statuses(theirs: dict[str, Any]) -> dict[str, str]:
    return {one.name.split(".")[1]: one.status for one in against_checks(OURS, theirs, name="rank 1")}


def test_the_same_passes() -> None:
    assert statuses(OURS) == dict.fromkeys(("versions", "casts", "recipe", "gpus"), "pass")


@pytest.mark.parametrize(
    ("changed", "part", "status"),
    [
        ({"versions": {**OURS["versions"], "torch": "2.12.0"}}, "versions", "fail"),
        ({"versions": {**OURS["versions"], "driver": "570.1"}}, "versions", "warn"),
        ({"versions": {}}, "versions", "unknown"),
        ({"casts": {"saturating_cast": False}}, "casts", "fail"),
        ({"casts": {}}, "casts", "unknown"),
        ({"wanted": {"recipe": "mxfp8"}}, "recipe", "fail"),
        ({"wanted": {}}, "recipe", "unknown"),
        ({"gpus": [{"name": "B200"}]}, "gpus", "warn"),
        ({"gpus": []}, "gpus", "unknown"),
        ({"gpus": 3, "casts": [1], "versions": "x"}, "gpus", "unknown"),
    ],
)
def test_what_differs_is_told(changed: dict[str, Any], part: str, status: str) -> None:
    assert statuses({**OURS, **changed})[part] == status


def test_what_one_side_could_not_read_does_not_differ_but_a_missing_library_does() -> None:
    without = {k: v for k, v in OURS["versions"].items() if k not in ("driver", "cuda")}
    assert different_versions(OURS, {**OURS, "versions": without}) == []
    without.pop("transformer-engine")
    assert different_versions(OURS, {**OURS, "versions": without}) == [("transformer-engine", "2.20.2", "")]
    assert different_casts(OURS, {"casts": {"other": 1}}) == []
    probed = {"cast_probe": {"tried": ["500.0"], "e4m3": ["nan"]}}
    te, bf16 = {"casts": {"saturating_cast": True, **probed}}, {"casts": {"saturating_cast": False, **probed}}
    assert different_casts(te, bf16) == [], "what a library does is no difference of the machines"
    assert different_casts({"casts": {"saturating_cast": True}}, bf16) == ["saturating_cast"]


def test_a_file_is_read_or_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(dumps(OURS))
    assert read_preflight(path) == OURS == given_preflight(str(path)) == given_preflight(OURS)
    for text, said in (
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "an object"),
        ('{"schema":"floatscope.verdict/1"}', "document.schema"),
        (" " * (MAX_FILE_BYTES + 1), "at most"),
    ):
        path.write_text(text)
        with pytest.raises(PreflightRefused, match=said) as error:
            read_preflight(path)
        assert str(path) in str(error.value)
    for missing in (tmp_path, tmp_path / "none.json", tmp_path / "a\0b"):
        with pytest.raises(PreflightRefused):
            read_preflight(missing)
    with pytest.raises(PreflightRefused, match="expected the document"):
        given_preflight(3)
