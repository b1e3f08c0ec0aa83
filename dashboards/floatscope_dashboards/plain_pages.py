"""Pages without data: sign-in, and messages that say what is the matter and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from floatscope_dashboards.page import Page
from floatscope_dashboards.say import Say


def login_page(say: Say, *, error: str | None, next: str) -> Page:
    """The sign-in form; it posts `token` and `next` to /login. `error` says why the last try failed."""
    title = say("Sign in")
    return Page("login.html", f"{title} \u2013 floatscope", values={"error": error, "next": next})


def message_page(
    say: Say, *, status: int, title: str, text: str, advice: str = "", links: Sequence[tuple[str, str]] = ()
) -> Page:
    """What is the matter and what to do: not found, gone, server error. links: (words, address), the first is
    what most readers want; without them there is a link to all runs.
    """
    values = {
        "status": status,
        "heading": title,
        "text": text,
        "advice": advice,
        "links": links or ((say("All runs"), "/"),),
    }
    return Page("message.html", f"{title} \u2013 floatscope", values=values)


def missing_page(say: Say, *, path: str, title: str, text: str, run_is_known: bool = True) -> Page:
    """A page that is not there: what may have happened to a run, a tensor or an alert, and where to look."""
    parts = [part for part in path.split("/") if part]
    runs = (say("All runs"), "/")
    if parts[:1] == ["runs"] and (len(parts) == 2 or (len(parts) > 2 and not run_is_known)):
        advice = say("It may have been deleted, or the address is of another server. Press / to search.")
        return message_page(
            say, status=404, title=say("There is no run {run}", run=parts[1]), text=advice, links=(runs,)
        )
    if parts[:1] == ["runs"] and len(parts) > 2:
        run = f"/runs/{quote(parts[1])}"
        links = ((say("The run"), run), (say("Its tensors"), f"{run}/tensors"), runs)
        return message_page(say, status=404, title=title, text=text, links=links)
    if parts[:1] == ["alerts"]:
        advice = say("Alerts go with their run when that is deleted.")
        title = say("There is no such alert")
        alerts_and_runs = ((say("All alerts"), "/alerts"), runs)
        return message_page(say, status=404, title=title, text=text, advice=advice, links=alerts_and_runs)
    return message_page(say, status=404, title=title, text=text, links=(runs, (say("Settings"), "/settings")))
