"""The ruler and the path of a run as the pages show them, over HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest

from floatscope_server.views.pictures import told_tensors
from tests.server.live import Client
from tests.server.samples import body, faulty_run, send

HTML = {"Accept": "text/html"}
TENSORS = {
    f"blocks.{layer}.fc/{role}": {"format": "e5m2" if "grad" in role else "e4m3", "call_order": layer}
    for layer in range(6)
    for role in ("input", "weight", "grad_output")
}


def ruler(client: Client, query: str = "", run: str = "r") -> str:
    answer = client.call("GET", f"/runs/{run}/ruler{query}", headers=HTML)
    assert answer.status == 200, answer.text[:300]
    return answer.text


def shown(html: str) -> list[tuple[str, str]]:
    """(tensor, what its row says at the end) from top to bottom."""
    names = re.findall(r'title="([^";]+)', html)
    return list(zip(names, re.findall(r'<span class="v">([^<]*)</span>', html), strict=True))


def histogram(exponent: int, count: int = 100) -> list[int]:
    out = [0] * 64
    out[exponent + 40] = count
    return out


def step(at: int, **of_tensor: dict[str, Any]) -> dict[str, Any]:
    """Every tensor with amax 100 at scale 1, and changes to some by their number in order of names."""
    tensors = {name: {"amax": 100.0, "scale": 1.0, "overflow_pct": 0.0, "nan_count": 0.0} for name in TENSORS}
    for name, changes in of_tensor.items():
        layer, role = name.split("_", 1)
        tensors[f"blocks.{layer[1:]}.fc/{role}"] |= changes
    return {"step": at, "loss": 2.0, "tensors": tensors}


def test_the_worst_tensors_of_the_step_come_first(client: Client) -> None:
    client.open_run("r", tensors=TENSORS)
    rows = [
        step(0),
        step(1, b3_input={"amax": 900.0, "overflow_pct": 4.1}, b5_weight={"nan_count": 7.0}),
        step(2),
    ]
    client.put("r", 0, body(rows))
    html = ruler(client, "?at=1")
    assert 'data-step="1"' in html
    found = shown(html)
    assert len(found) == 8
    assert found[0] == ("blocks.5.fc/weight", "7 NaN")
    assert found[1] == ("blocks.3.fc/input", "4.1\u202f% clip")
    assert sum("grad_output" in name for name, _words in found) >= 2
    assert shown(ruler(client, "?at=2"))[0][1] == "2.2 free"
    pinned = shown(ruler(client, "?at=2&t=blocks.5.fc/grad_output"))
    assert len(pinned) == 9
    assert len(shown(ruler(client, "?at=2&t=blocks.5.fc/grad_output&t=blocks.4.fc/grad_output&t=none"))) == 10
    assert len(shown(ruler(client, "?at=2&all=1"))) == len(TENSORS)


def test_the_ruler_of_the_page_keeps_the_tensor_of_the_finding_it_tells() -> None:
    warning = {"id": "a", "severity": "warning", "tensor": "b/input", "state": "open", "onset_step": 2}
    over = {"id": "b", "severity": "critical", "tensor": "c/input", "state": "recovered", "onset_step": 1}
    assert told_tensors({"findings": [over, warning]}) == ("b/input",)
    assert told_tensors({"findings": [over]}) == ("c/input",)
    assert told_tensors({"findings": [{**warning, "tensor": None}]}) == ()
    assert told_tensors({}) == ()


def test_steps_without_statistics_show_the_last_that_had_them(client: Client) -> None:
    client.open_run("r", tensors=TENSORS)
    client.put("r", 0, body([step(0), {"step": 1, "loss": 2.0}, {"step": 2, "loss": 2.0}]))
    html = ruler(client, "?at=2")
    assert 'data-step="0"' in html
    assert "at step 0, the last one measured before 2" in html


def test_the_nearest_histogram_is_moved_by_the_scale_of_its_own_step(client: Client) -> None:
    client.open_run("r", tensors=TENSORS)
    near = {"hist_log2": histogram(0), "scale": 16.0}
    far = {"hist_log2": histogram(3), "scale": 2.0}
    rows = [step(at) for at in range(12)]
    rows[0] = step(0, b0_input={**far, "amax": 200.0})
    rows[10] = step(10, b0_input={**near, "amax": 200.0})
    client.put("r", 0, body(rows))
    title = re.compile(r'title="blocks\.0\.fc/input; ([^"]*)"')
    for at, sampled, half in (
        (1, 0, "2^4.2 to 2^4.8"),
        (8, 10, "2^4.2 to 2^4.8"),
        (11, 10, "2^4.2 to 2^4.8"),
    ):
        (told,) = set(title.findall(ruler(client, f"?at={at}&t=blocks.0.fc/input")))
        assert f"middle half {half}" in told
        assert told.endswith(f"sampled at step {sampled}")


@pytest.mark.parametrize(
    "query", ["", "?at=", "?at=-1", "?at=x", "?at=9e9", "?at=99999999999999999999", "?at=%D9%A3"]
)
def test_any_address_shows_a_ruler(client: Client, query: str) -> None:
    client.open_run("r", tensors=TENSORS)
    client.put("r", 0, body([step(0), step(1)]))
    assert 'data-step="1"' in ruler(client, query)


def test_what_there_is_not_is_said(client: Client) -> None:
    client.open_run("r")
    assert "No tensor statistics were logged" in ruler(client)
    client.put("r", 0, body([{"step": 0, "loss": 1.0}]))
    assert "No tensor statistics were logged" in ruler(client, "?at=0")
    assert client.call("GET", "/runs/none/ruler", headers=HTML).status == 404


def test_names_with_markup_stay_text(client: Client) -> None:
    name = '<script>alert(1)</script>"&/input'
    client.open_run("r", tensors={name: {"format": "e4m3"}})
    client.put("r", 0, body([{"step": 0, "loss": 1.0, "tensors": {name: {"amax": 1.0, "scale": 1.0}}}]))
    html = ruler(client)
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def path(client: Client) -> str:
    html = client.call("GET", "/runs/r", headers=HTML).text
    found = re.search(r'<section[^>]*id="nan-path">.*?</section>', html, re.S)
    return found.group(0) if found else ""


def test_how_nan_spread_is_shown_from_its_first_tensor(client: Client) -> None:
    client.open_run("r", tensors=TENSORS)
    rows = [step(at) for at in range(40)]
    bad = {
        f"b{layer}_{role}": {"nan_count": 9.0} for layer in range(2, 6) for role in ("input", "grad_output")
    }
    rows[20] = step(20, **bad)
    rows[20]["loss"] = "NaN"
    rows[21] = step(21, b4_weight={"nan_count": 3.0}, b0_grad_output={"scale": "Infinity"})
    client.put("r", 0, body(rows))
    html = path(client)
    names = [re.sub("<[^>]*>", "", name) for name in re.findall(r'<p class="n[^"]*">(.*?)</p>', html)]
    assert names[:4] == [
        "blocks.2.fc/input",
        "activations: 3.fc \u2026 5.fc",
        "loss",
        "gradients: 5.fc \u2026 2.fc",
    ]
    assert set(names[4:]) == {"blocks.4.fc/weight", "blocks.0.fc/grad_output"}
    assert "First value that is not finite at step 20" in html


def test_while_all_is_finite_no_path_is_shown(client: Client) -> None:
    described, steps = faulty_run(32, fault_at=99)
    client.open_run("r", **described)
    send(client, "r", steps)
    assert path(client) == ""


def test_of_several_ranks_the_one_that_began_is_named(client: Client) -> None:
    client.open_run("r", tensors=TENSORS, ranks=3)
    for rank in range(3):
        rows = [step(at) for at in range(10)]
        if rank:
            rows[9 - rank] = step(9 - rank, b1_input={"nan_count": 1.0})
        client.put("r", 0, body(rows), rank=rank)
    html = path(client)
    assert "at step 7, on rank 2" in html
