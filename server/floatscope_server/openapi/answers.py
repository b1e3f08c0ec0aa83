"""What each address answers: status, shape and which problems can be expected of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from floatscope_server.openapi.shapes import COUNT, TEXT, Shape, array, obj, page, ref

JSON = "application/json"
JSON_LINES = "application/jsonl"
EVENT_STREAM = "text/event-stream"
PLAIN = "text/plain"

API = "/api/v1"
RUN = f"{API}/runs/{{run_id}}"
BATCH = f"{RUN}/ranks/{{rank}}/batches/{{seq}}"

TITLES: Mapping[int, str] = {
    400: "The request was cut short or is no HTTP request that can be understood.",
    401: "There is no valid token.",
    403: "The token lacks the scope.",
    404: "There is no such thing.",
    409: "It does not fit what is there.",
    413: "The request is too large.",
    415: "The content type or encoding is not known.",
    421: "Another worker serves the run.",
    422: "Something in the request is wrong; field, expected and hint say what.",
    429: "Too much at once; Retry-After says when to come back.",
    502: "What is stored is damaged.",
    503: "Storage is away or the server is busy; Retry-After says when to come back.",
    507: "The disk is nearly full, so nothing is stored.",
}
"""What a problem of each status means."""


@dataclass(frozen=True)
class Answer:
    """What a request gets that went well, and the problems beside those that any request can have.

    cached: whether it has an ETag, and 304 for whoever has it already.
    """

    shape: Shape
    text: str = "Done."
    status: int = 200
    also: tuple[tuple[int, str], ...] = ()
    problems: tuple[int, ...] = ()
    media: str = JSON
    cached: bool = False


_RUN_SHOWN = ref("RunDetails")
_READY = obj({"status": {"enum": ["ready", "not ready"]}, "problems": array(TEXT)})

ANSWERS: Mapping[tuple[str, str], Answer] = {
    ("POST", f"{API}/runs"): Answer(
        ref("OpenedRun"),
        "The run was there and goes on.",
        also=((201, "The run was created."),),
        problems=(507,),
    ),
    ("GET", f"{API}/runs"): Answer(page(ref("Run")), "Runs, newest first."),
    ("GET", RUN): Answer(_RUN_SHOWN, "The run."),
    ("PATCH", RUN): Answer(_RUN_SHOWN, "The run as it is now.", problems=(409,)),
    ("DELETE", RUN): Answer(ref("DeletedRun"), "It is gone."),
    ("POST", f"{RUN}/finish"): Answer(_RUN_SHOWN, "The run as it is now."),
    ("PUT", BATCH): Answer(
        ref("Receipt"),
        "Stored, or it was there already; a repeat has no verdict and no settings.",
        problems=(409, 507),
    ),
    ("GET", f"{RUN}/verdict"): Answer(ref("Verdict"), "The verdict.", cached=True),
    ("GET", f"{RUN}/scalars"): Answer(ref("Scalars"), "The scalars.", problems=(502,), cached=True),
    ("GET", f"{RUN}/series"): Answer(ref("Series"), "The series.", problems=(502,), cached=True),
    ("GET", f"{RUN}/heatmap"): Answer(ref("HeatMap"), "The heat map.", problems=(502,), cached=True),
    ("GET", f"{RUN}/histogram"): Answer(
        ref("HistogramSeries"), "The histograms.", problems=(502,), cached=True
    ),
    ("GET", f"{RUN}/ticks"): Answer(ref("Ticks"), "The marks.", problems=(502,), cached=True),
    ("GET", f"{RUN}/rankmap"): Answer(ref("RankMap"), "The map.", problems=(502,), cached=True),
    ("GET", f"{RUN}/tensors"): Answer(
        page(ref("Tensor"), {"ranks_left_out": COUNT}), "The tensors.", problems=(502,), cached=True
    ),
    ("GET", f"{RUN}/frame"): Answer(ref("Frame"), "The step.", problems=(502,), cached=True),
    ("GET", f"{RUN}/steps"): Answer(
        ref("LogLine"), "A floatscope log, one object a line.", problems=(502,), media=JSON_LINES
    ),
    ("GET", f"{RUN}/what-if"): Answer(ref("WhatIf"), "What was found.", problems=(502,), cached=True),
    ("GET", f"{RUN}/advice"): Answer(ref("Advice"), "The advice.", problems=(502,), cached=True),
    ("GET", f"{API}/search"): Answer(ref("Found"), "What was found, best first."),
    ("GET", f"{API}/compare"): Answer(ref("Comparison"), "The comparison.", problems=(404, 502), cached=True),
    ("GET", f"{API}/events"): Answer(TEXT, "Events, as long as the client listens.", media=EVENT_STREAM),
    ("GET", f"{API}/alerts"): Answer(page(ref("Alert"), {"firing": COUNT}), "Alerts, newest first."),
    ("GET", f"{API}/alerts/{{alert_id}}"): Answer(ref("Alert"), "The alert."),
    ("PATCH", f"{API}/alerts/{{alert_id}}"): Answer(ref("Alert"), "The alert as it is now.", problems=(409,)),
    ("POST", f"{API}/alerts/actions"): Answer(ref("ActedOn"), "What became of each."),
    ("GET", f"{API}/silences"): Answer(page(ref("Silence")), "Silences, newest first."),
    ("POST", f"{API}/silences"): Answer(ref("Silence"), "The silence.", status=201, problems=(409,)),
    ("GET", f"{API}/silences/{{silence_id}}"): Answer(ref("Silence"), "The silence."),
    ("DELETE", f"{API}/silences/{{silence_id}}"): Answer(ref("Silence"), "The silence, ended."),
    ("GET", f"{API}/rules"): Answer(page(ref("Rule")), "All rules."),
    ("GET", f"{API}/rules/{{code}}"): Answer(ref("RuleDetails"), "The rule."),
    ("PUT", f"{API}/rules/{{code}}/settings"): Answer(ref("RuleChange"), "What changed.", problems=(409,)),
    ("DELETE", f"{API}/rules/{{code}}/settings"): Answer(ref("RuleChange"), "What changed."),
    ("POST", f"{API}/rules/{{code}}/backtest"): Answer(ref("BackTest"), "It was begun.", status=202),
    ("GET", f"{API}/backtests"): Answer(page(ref("BackTest")), "The newest back-tests."),
    ("GET", f"{API}/backtests/{{backtest_id}}"): Answer(ref("BackTest"), "The back-test."),
    ("DELETE", f"{API}/backtests/{{backtest_id}}"): Answer(ref("BackTest"), "The back-test, ended."),
    ("GET", f"{API}/channels"): Answer(page(ref("Channel")), "All channels."),
    ("POST", f"{API}/channels"): Answer(ref("Channel"), "The channel.", status=201, problems=(409,)),
    ("GET", f"{API}/channels/{{channel_id}}"): Answer(ref("Channel"), "The channel."),
    ("PATCH", f"{API}/channels/{{channel_id}}"): Answer(
        ref("Channel"), "The channel as it is now.", problems=(409,)
    ),
    ("DELETE", f"{API}/channels/{{channel_id}}"): Answer(ref("Channel"), "What it was.", problems=(409,)),
    ("POST", f"{API}/channels/{{channel_id}}/test"): Answer(ref("ChannelTest"), "What came of it."),
    ("GET", f"{API}/channels/{{channel_id}}/deliveries"): Answer(page(ref("Delivery")), "Messages."),
    ("POST", f"{API}/channels/{{channel_id}}/deliveries/{{number}}/retry"): Answer(
        ref("Delivery"), "The message, waiting again.", problems=(409,)
    ),
    ("GET", f"{API}/me"): Answer(ref("Caller"), "Who asks."),
    ("GET", f"{API}/tokens"): Answer(page(ref("Token")), "All tokens."),
    ("POST", f"{API}/tokens"): Answer(ref("NewToken"), "The token.", status=201, problems=(409,)),
    ("DELETE", f"{API}/tokens/{{token_id}}"): Answer(ref("Token"), "The token, ended.", problems=(409,)),
    ("GET", f"{API}/audit"): Answer(page(ref("Act")), "Acts, newest first."),
    ("GET", "/healthz"): Answer(obj({"status": {"const": "ok"}, "version": TEXT}), "It lives."),
    ("GET", "/readyz"): Answer(_READY, "It can work.", also=((503, "It cannot work now."),)),
    ("GET", "/metrics"): Answer(TEXT, "Metrics for Prometheus.", media=PLAIN),
}
"""By method and path. A route that is not here fails a test."""
