"""In which language a page answers a request."""

from __future__ import annotations

from fastapi import Request

from floatscope_dashboards.pages import Pages
from floatscope_dashboards.say import Say, chosen_language

LANGUAGE_COOKIE = "floatscope-language"
MOST_ACCEPTED = 10


def say_of(request: Request, pages: Pages) -> Say:
    """What says things in the language of this request: ``?lang=``, else the cookie, else Accept-Language."""
    header = request.headers.get("accept-language", "")
    accepted = [part.partition(";")[0].strip() for part in header.split(",")[:MOST_ACCEPTED]]
    asked, remembered = request.query_params.get("lang"), request.cookies.get(LANGUAGE_COOKIE)
    return pages.say(chosen_language(asked, remembered, accepted))
