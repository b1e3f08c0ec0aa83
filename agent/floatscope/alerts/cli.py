"""``floatscope alerts``: what fires, and saying that somebody is on it."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence

from floatscope.api import Alert, Api, ApiError, BadAddress, server_of
from floatscope.jsonable import one_line

OK, FAILED = 0, 2
NAME = "floatscope alerts"
ACTIONS = {
    "acknowledge": "say that you have seen it",
    "resolve": "close it",
    "reopen": "open it again",
    "not-the-cause": "close it for good: it names the wrong cause",
}
OPEN = "firing,acknowledged"
_EXAMPLES = """examples:
  floatscope alerts
  floatscope alerts --run qwen2-7b-fp8 --state all --json
  floatscope alerts 3f2a9c --acknowledge --note "looking at the data"
  floatscope alerts 3f2a9c --not-the-cause

Without an id the alerts that are open are listed, newest first. The token is --token, else FLOATSCOPE_TOKEN,
else the one a server on this machine keeps in its data directory.

exit codes: 0 done, 2 the server was not reached or refused"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope alerts``."""
    p = argparse.ArgumentParser(
        prog=NAME,
        description="Lists a floatscope server's alerts, or does something with one.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("id", nargs="?", metavar="ID", help="one alert")
    what = p.add_mutually_exclusive_group()
    for action, meaning in ACTIONS.items():
        what.add_argument(f"--{action}", dest="action", action="store_const", const=action, help=meaning)
    p.add_argument("--note", help="a text for whoever comes next; alone it changes nothing else")
    p.add_argument("--run", help="only of this run")
    p.add_argument("--state", default=OPEN, help=f"only in these states, or all (default: {OPEN})")
    p.add_argument("--severity", help="only of these severities")
    p.add_argument("--limit", type=int, default=100, help="at most so many (default: 100)")
    p.add_argument("--server", metavar="URL", help="the server (default: FLOATSCOPE_URL, else this machine)")
    p.add_argument("--token", help="the server's token")
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    try:
        args = parser().parse_args(list(argv))
    except SystemExit as stop:
        return OK if stop.code in (0, None) else FAILED
    if args.id is None and (args.action or args.note):
        return _say("which alert? give its id")
    try:
        with Api(server_of(os.environ, url=args.server, token=args.token), user_agent=NAME) as api:
            return _one(api, args) if args.id is not None else _list(api, args)
    except (ApiError, BadAddress) as error:
        return _say(str(error))


def _list(api: Api, args: argparse.Namespace) -> int:
    state = None if args.state == "all" else args.state
    wanted = api.alerts(run=args.run, state=state, severity=args.severity)
    found = list(itertools.islice(wanted, max(args.limit, 0)))
    if args.json:
        print(json.dumps({"items": [dict(alert.body) for alert in found]}))
    elif not found:
        print("no alerts" if state is None else "no open alerts (--state all lists those that are over)")
    else:
        print("\n".join(_line(alert) for alert in found))
    return OK


def _one(api: Api, args: argparse.Namespace) -> int:
    action = args.action.replace("-", "_") if args.action else ("note" if args.note else None)
    alert = api.alert(args.id) if action is None else api.act(args.id, action, note=args.note)
    print(json.dumps(dict(alert.body)) if args.json else _line(alert))
    return OK


def _line(alert: Alert) -> str:
    """Two lines for people; names are other people's, so nothing in them reaches the terminal as it is."""
    head = f"{alert.id} {alert.severity} {alert.state} run {alert.run_id} step {alert.onset_step}"
    return f"{one_line(head, most=300)}\n    {one_line(alert.summary, most=300)}"


def _say(text: str) -> int:
    print(f"{NAME}: {one_line(text, most=1000)}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
