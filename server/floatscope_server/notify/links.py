"""Addresses of pages that messages lead to."""

from __future__ import annotations

from urllib.parse import quote


class Links:
    """Links below the server's public address."""

    def __init__(self, public_url: str) -> None:
        self._public_url = public_url

    def run(self, run_id: str, *, at: int | None) -> str:
        """The run's page, at a step."""
        return f"{self._public_url}/runs/{quote(run_id, safe='')}" + ("" if at is None else f"?at={at}")

    def alert(self, alert_id: str) -> str:
        """The alert's page, where it can be acknowledged."""
        return f"{self._public_url}/alerts/{quote(alert_id, safe='')}"

    def alerts(self) -> str:
        return f"{self._public_url}/alerts"
