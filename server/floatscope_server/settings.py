"""Every setting of the server: default, unit, meaning. Read from arguments, ``FLOATSCOPE_*`` variables or a
TOML file.
"""

from __future__ import annotations

import difflib
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as UnreadableVariable

from floatscope_server.origins import networks

DEFAULT_PORT = 8321
PREFIX = "FLOATSCOPE_"


class SettingsError(ValueError):
    """A setting is wrong; the message names it, says what was expected and where it came from."""


class ProjectRetention(BaseModel):
    """How long the runs of one project are kept. What is None is as for all; ``keep``: they always stay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    days: float | None = Field(default=None, gt=0)
    gib: float | None = Field(default=None, gt=0)
    keep: bool = False


class Settings(BaseSettings):
    """What ``floatscope serve`` works with.

    Arguments win over ``FLOATSCOPE_*`` variables, those over the TOML file.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = Field(default=DEFAULT_PORT, ge=1, le=65535)
    """Port to listen on."""
    data_dir: Path = Path("floatscope-data")
    """Where the embedded database and the first token are kept."""
    database_url: SecretStr | None = None
    """``postgresql://user:password@host/database``; without it SQLite in ``data_dir``. May hold a password.
    """
    token: SecretStr | None = None
    """An admin token for the life of the process; never stored."""
    url: str | None = None
    """Public address of the server, used in links; without it ``http://host:port``."""
    slack_webhook_url: SecretStr | None = None
    """One Slack channel without a click."""
    allow_private_webhooks: bool = False
    """Whether a webhook may point at a loopback or private address."""
    alert_group_s: float = Field(default=30.0, ge=0, le=3600)
    """How long a warning waits for others of its run, to be one message, in s; critical never does."""
    alert_flap_s: float = Field(default=600.0, ge=0, le=86_400)
    """An alert that comes back within this time is told again only once it fired for so long, in s."""
    sqlite_synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """FULL: a batch that was acknowledged survives a power cut. NORMAL: faster, the last batches may not."""
    trusted_proxies: str = ""
    """Addresses or networks of proxies, separated by commas, whose ``X-Forwarded-For`` names the client."""
    audit_days: int = Field(default=365, ge=1, le=36_500)
    """Days that the audit log keeps who did what."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that serve on this machine, all behind one address; more than one needs PostgreSQL."""
    advertise: str | None = None
    """With PostgreSQL and several machines: where the workers of other machines reach those of this one,
    ``http://host:port``; worker n listens there on port + n. ``{hostname}`` stands for this machine's name.
    """
    database_connections: int = Field(default=50, ge=5)
    """Most connections to PostgreSQL of all workers on this machine together, besides three for each."""
    retention_days: float | None = Field(default=None, gt=0)
    """Days after its last sign of life that a run which ended is deleted; without it runs are kept."""
    retention_gib: float | None = Field(default=None, gt=0)
    """GiB of all runs together beyond which the oldest that ended are deleted."""
    retention_projects: dict[str, ProjectRetention] = Field(default_factory=dict)
    """What single projects do differently: ``{"project": {"days": 30, "gib": 5, "keep": false}}``."""
    tiles_url: str | None = None
    """``s3://bucket/prefix`` of a store that keeps the bulk of the numbers; without it the database does."""
    tiles_endpoint_url: str | None = None
    """Address of a store that is not AWS, ``https://host:port``."""
    tiles_region: str | None = None
    """Region of the bucket; without it what AWS tools would take."""
    tiles_access_key_id: str | None = None
    """Key of the store; without it ``AWS_ACCESS_KEY_ID`` or wherever AWS tools find theirs."""
    tiles_secret_access_key: SecretStr | None = None
    """Secret of that key."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are logged."""
    log_format: Literal["text", "json"] = "text"
    """``json``: one object a line, for machines."""
    ingest_per_s: float = Field(default=5000.0, gt=0)
    """Requests a second by which one token may bring steps, on average; each worker counts for itself."""
    requests_per_s: float = Field(default=500.0, gt=0)
    """Other requests a second of one token, or address without one; each worker counts for itself."""
    disk_reserve_mib: int = Field(default=256, ge=0)
    """MiB that stay free on the disk of the embedded database: with less, steps are refused."""
    drain_s: float = Field(default=0.0, ge=0, le=300)
    """How long the server still serves after it was told to stop, in s, while ``/readyz`` says 503: so that
    whatever spreads requests over servers notices.
    """
    diagnose: bool = True
    """Off only to measure storage alone: batches are then stored and not judged."""

    @field_validator("url")
    @classmethod
    def _without_slash(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("http://", "https://")):
            raise ValueError("expected an address that begins with http:// or https://")
        return value.rstrip("/")

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        networks(value)
        return value

    @field_validator("advertise")
    @classmethod
    def _reachable(cls, value: str | None) -> str | None:
        parts = urlsplit("" if value is None else value.replace("{hostname}", "name"))
        more = parts.path or parts.query or parts.username
        if value is not None and (parts.scheme != "http" or not parts.hostname or more):
            raise ValueError("expected http://host:port")
        return value

    @field_validator("token")
    @classmethod
    def _printable(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not (
            value.get_secret_value().isascii() and value.get_secret_value().isprintable()
        ):
            raise ValueError("expected printable ASCII characters")
        return value

    @property
    def public_url(self) -> str:
        """Address for links, without a slash at the end."""
        if self.url is not None:
            return self.url
        # a link needs a real host
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def advertise_to(self) -> str | None:
        """``advertise`` with this machine's name in it."""
        return None if self.advertise is None else self.advertise.replace("{hostname}", socket.gethostname())

    @property
    def database_file(self) -> Path:
        """The embedded database."""
        return self.data_dir / "floatscope.db"

    @property
    def database(self) -> str:
        """SQLAlchemy URL of the database."""
        if self.database_url is None:
            return f"sqlite:///{self.database_file.absolute()}"
        url = self.database_url.get_secret_value()
        for prefix in ("postgres://", "postgresql://"):
            if url.startswith(prefix):
                return "postgresql+psycopg://" + url.removeprefix(prefix)
        return url

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(overrides: Mapping[str, Any], *, config: Path | None) -> Settings:
    """The settings from arguments (``overrides``), the environment and a TOML file (``config``).

    Raises SettingsError.
    """
    if config is not None and not config.is_file():
        raise SettingsError(f"the settings file {config} does not exist; expected a TOML file")

    class FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=config)

    try:
        return FromFile(**overrides)
    except ValidationError as error:
        raise SettingsError(_explain(error, config)) from error
    except UnreadableVariable as error:
        raise SettingsError(f"a FLOATSCOPE_* variable is not JSON: {error}") from error
    except ValueError as error:  # the TOML reader's own
        raise SettingsError(f"{config}: not valid TOML: {error}") from error


def misspelt(variables: Iterable[str]) -> list[tuple[str, str]]:
    """(variable, the setting that may be meant) of ``FLOATSCOPE_*`` variables that are nearly one.

    Others may be meant for the agent, so they are passed over.
    """
    known = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    found = []
    for name in variables:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.9) if name.startswith(PREFIX) else []
        if near and name not in known:
            found.append((name, near[0]))
    return found


def _explain(error: ValidationError, config: Path | None) -> str:
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = ", ".join((Settings if len(item["loc"]) == 1 else ProjectRetention).model_fields)
            lines.append(f"{config}: there is no setting {name!r}; known are {known}")
        else:
            lines.append(f"setting {name} (FLOATSCOPE_{name.upper()}): {item['msg']}")
    return "\n".join(lines)
