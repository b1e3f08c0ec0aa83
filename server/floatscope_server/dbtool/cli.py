"""``floatscope db``: status, schema, backup, verification, moving, and giving room back."""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from floatscope_server import migrate
from floatscope_server.chunk_writer import Interrupted
from floatscope_server.dbtool import backup, moving, purging, status
from floatscope_server.dbtool.opening import CannotDo, alone, connect, opened, reason, shown
from floatscope_server.dbtool.verify import Counted, verify
from floatscope_server.migrate import SchemaError
from floatscope_server.objects.opening import open_objects
from floatscope_server.settings import Settings, SettingsError, load
from floatscope_server.store import losses
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.unpacking import Unpacker

EXIT_USAGE = 2
EXIT_FAULTS = 1

_EXAMPLES = """examples:
  floatscope db status
  floatscope db backup /backups/floatscope-monday.db
  floatscope db verify --full
  floatscope db move --to postgresql://floatscope@db.example.org/floatscope
  floatscope db purge --dry-run

The database is the one of the settings (--data-dir, --config, FLOATSCOPE_DATABASE_URL). floatscope db COMMAND
--help says more about each."""


def main(argv: Sequence[str]) -> int:
    """Runs one subcommand. Returns 0; 1 if something is wrong with the data; 2 if it cannot be done."""
    args = _parser().parse_args(list(argv))
    try:
        settings = load({} if args.data_dir is None else {"data_dir": args.data_dir}, config=args.config)
        run: Callable[[Settings, argparse.Namespace], int] = args.run
        return run(settings, args)
    except (CannotDo, SchemaError, SettingsError) as error:
        print(f"floatscope db {args.command}: {error}", file=sys.stderr)
    except (SQLAlchemyError, sqlite3.Error) as error:
        print(f"floatscope db {args.command}: the database says: {reason(error)}", file=sys.stderr)
    except OSError as error:
        print(f"floatscope db {args.command}: {error.strerror or error}: {error.filename}", file=sys.stderr)
    return EXIT_USAGE


def _status(settings: Settings, args: argparse.Namespace) -> int:
    with opened(settings, current=False) as database:
        told = status.status(database, settings.database)
    _tell(args, told, status.lines(told))
    return 0


def _upgrade(settings: Settings, args: argparse.Namespace) -> int:
    database = connect(settings.database)
    try:
        before = migrate.revision_of(database)
        migrate.upgrade(database)
        after = migrate.revision_of(database)
    finally:
        database.close()
    _tell(args, {"from": before, "to": after}, [f"schema {before} -> {after}"])
    return 0


def _downgrade(settings: Settings, args: argparse.Namespace) -> int:
    migrate.check_known(args.revision)
    with alone(settings), opened(settings) as database:
        with database.read() as c:
            lost = losses.below(c, args.revision)
        if lost and not args.discard:
            listed = "; ".join(f"{count} {what}" for what, count in lost.items())
            raise CannotDo(
                f"schema {args.revision} cannot hold {listed}; make a backup (floatscope db backup FILE) and "
                "repeat with --discard to lose them"
            )
        before = migrate.revision_of(database)
        migrate.downgrade(database, revision=args.revision)
        after = migrate.revision_of(database)
    _tell(args, {"from": before, "to": after, "lost": lost}, [f"schema {before} -> {after}"])
    return 0


def _backup(settings: Settings, args: argparse.Namespace) -> int:
    with opened(settings, current=False) as database:
        schema = migrate.revision_of(database) or ""
    made = backup.back_up(settings.database, args.file, schema=schema, replace=args.replace)
    told = {"file": str(made.file), "bytes": made.bytes, "schema": schema, "rows": dict(made.rows)}
    _tell(args, told, [f"{made.file}: {made.bytes} bytes, schema {schema}, read back and sound"])
    return 0


def _verify(settings: Settings, args: argparse.Namespace) -> int:
    counted = Counted()
    with opened(settings) as database:
        objects = open_objects(settings)
        faults = list(verify(database, full=args.full, objects=objects, counted=counted))
    looked = f"{counted.batches} batches of {counted.ranks} ranks, {counted.chunks} chunks"
    told = {"ok": not faults, **asdict(counted), "faults": [asdict(fault) for fault in faults]}
    lines = [str(fault) for fault in faults]
    _tell(args, told, [*lines, f"{looked}: {'nothing is wrong' if not faults else f'{len(faults)} faults'}"])
    return EXIT_FAULTS if faults else 0


def _move(settings: Settings, args: argparse.Namespace) -> int:
    to = Settings(database_url=args.to).database
    with alone(settings), opened(settings) as database:
        moved = moving.move(database, to, progress=lambda line: print(line, file=sys.stderr))
    told = {"from": shown(settings.database), "to": shown(to), "rows": moved.rows}
    _tell(args, told, [f"{sum(moved.rows.values())} rows are at {shown(to)}; the source is unchanged"])
    return 0


def _compact(settings: Settings, args: argparse.Namespace) -> int:
    with alone(settings), opened(settings, current=False) as database:
        before = status.on_disk(database)
        database.rewrite()
        after = status.on_disk(database)
    _tell(args, {"before_bytes": before, "after_bytes": after}, [f"{before} bytes -> {after} bytes"])
    return 0


def _unpack(settings: Settings, args: argparse.Namespace) -> int:
    unpacked = 0
    with alone(settings), opened(settings) as database:
        unpacker = Unpacker(
            database=database,
            tensor_tables=TensorTables(),
            worker=f"unpack-{database.name}",
            objects=open_objects(settings),
        )
        try:
            for run, rank, chunks in unpacker.unpack_all():
                unpacked += chunks
                print(f"run {run} rank {rank}: {chunks} chunks unpacked", file=sys.stderr)
        except Interrupted as error:
            raise CannotDo(
                "a server works on this database, or deleted runs are still there; stop the server, wait a "
                "minute and run floatscope db purge first"
            ) from error
    _tell(args, {"chunks": unpacked}, [f"{unpacked} chunks are hot blocks again"])
    return 0


def _purge(settings: Settings, args: argparse.Namespace) -> int:
    with opened(settings) as database:
        done = purging.purge(database, settings, dry_run=args.dry_run)
    would = "would be " if args.dry_run else ""
    lines = [f"run {run.run_id} ({run.project}): {would}deleted, {run.why}" for run in done.doomed]
    lines.append(f"{done.removed} deleted runs {would}removed with all their rows")
    if done.objects is not None:
        lines.append(f"{done.objects} objects {would}deleted from the store")
    _tell(args, {"dry_run": args.dry_run, **asdict(done)}, lines)
    return 0


def _tell(args: argparse.Namespace, told: dict[str, Any], lines: Sequence[str]) -> None:
    print(json.dumps(told, indent=2) if args.json else "\n".join(lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="floatscope db",
        description="Looks after the database of a server.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Any, about: str, example: str, more: str = "") -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}. {more}".strip(),
            epilog=f"example:\n  floatscope db {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--data-dir", type=Path, help="the server's data (default ./floatscope-data)")
        command.add_argument("--config", type=Path, help="a TOML file with settings")
        command.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
        command.set_defaults(run=run)
        return command

    add("status", _status, "schema, sizes, counts and what is left over", "status --json")
    add("upgrade", _upgrade, "bring the schema to this version (serve does it by itself)", "upgrade")
    down = add(
        "downgrade",
        _downgrade,
        "take the schema back to an earlier version",
        "downgrade 0004",
        "Refuses if the older schema could not hold what is stored.",
    )
    down.add_argument("revision", help="schema to go back to, such as 0004, or base for none at all")
    down.add_argument("--discard", action="store_true", help="lose what the older schema cannot hold")
    save = add(
        "backup",
        _backup,
        "write one consistent copy, also while the server runs",
        "backup /backups/floatscope.db",
        "SQLite: a database file. PostgreSQL: an archive of pg_dump for pg_restore. Numbers that lie in an "
        "object store are not in it.",
    )
    save.add_argument(
        "file", type=Path, help="file to write; it appears when it is whole, readable by you only"
    )
    save.add_argument("--replace", action="store_true", help="replace the file if it exists")
    check = add(
        "verify",
        _verify,
        "check that everything stored can be read and fits together",
        "verify --full",
        "Also while the server runs. Exit code 1 and a list if anything is wrong.",
    )
    check.add_argument("--full", action="store_true", help="make every level anew, not only a sample")
    move = add(
        "move",
        _move,
        "copy everything to an empty database, SQLite or PostgreSQL, either way",
        "move --to postgresql://floatscope@db.example.org/floatscope",
        "Stop the server first. All or nothing; every table is compared row by row.",
    )
    move.add_argument("--to", required=True, metavar="URL", help="postgresql://... or sqlite:///path/to/file")
    add(
        "compact",
        _compact,
        "rewrite the database so that free room is given back",
        "compact",
        "SQLite: stop the server first. PostgreSQL: VACUUM of every table.",
    )
    add(
        "unpack",
        _unpack,
        "make hot blocks of all chunks, before going back to schema 0004",
        "unpack",
        "Stop the server first. Takes more room than the chunks did.",
    )
    purge = add("purge", _purge, "remove now what is deleted or over its time", "purge --dry-run")
    purge.add_argument("--dry-run", action="store_true", help="only say what would go")
    return parser
