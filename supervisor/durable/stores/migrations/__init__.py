"""How the tables of a database come to be: an ordered list of migrations, each applied once, none ever undone.

What was applied stands in the table `supervisor_migrations`, with a checksum: a database that is newer than this
library, or that was made in another way, is refused and left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from supervisor.durable.errors import StoreError

__all__ = ["Applied", "Migration", "Step", "missing", "script", "steps"]


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. Never edit one that was released: add another."""

    name: str
    statements: tuple[str, ...]  # without a semicolon at the end

    @property
    def checksum(self) -> str:
        """SHA-256 of the name and the statements; blanks around lines don't count."""
        lines = [self.name]
        for statement in self.statements:
            lines += [stripped for line in statement.splitlines() if (stripped := line.strip())]
        return sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """A row of `supervisor_migrations`."""

    n: int  # from 1
    name: str
    checksum: str
    applied_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class Step:
    """One migration of the list, and when it was applied to a database: None if it was not yet."""

    n: int
    name: str
    applied_at: datetime | None


def missing(
    known: Sequence[Migration], applied: Iterable[Applied], where: str
) -> list[tuple[int, Migration]]:
    """Return what has to be applied, with its number.

    where: names the database in errors. Raises StoreError if the database is newer, or was made in another way.
    """
    done = sorted(applied, key=lambda each: each.n)
    for place, (row, number) in enumerate(zip(done, range(1, len(done) + 1), strict=True)):
        if row.n != number:
            raise StoreError(
                f"{where} lacks migration {number}, and has later ones; restore it from a backup"
            )
        if place >= len(known):
            raise StoreError(
                f"{where} was made by a newer version of this library: it has migration {row.n} {row.name!r}, and "
                f"this version knows {len(known)}; update the library"
            )
        if row.checksum != known[place].checksum:
            raise StoreError(
                f"{where} was made in another way: migration {row.n} {row.name!r} has the checksum "
                f"{row.checksum[:12]}, and here {known[place].name!r} has {known[place].checksum[:12]}; use the "
                "version of this library that made it, or another database"
            )
    return [(number, each) for number, each in enumerate(known, 1) if number > len(done)]


def steps(known: Sequence[Migration], applied: Iterable[Applied]) -> list[Step]:
    """Return every migration and whether it was applied."""
    at = {each.n: each.applied_at for each in applied}
    return [Step(number, each.name, at.get(number)) for number, each in enumerate(known, 1)]


def script(known: Sequence[Migration], table: str, begin: str, now: str) -> str:
    """Return the SQL that makes all tables of an empty database, for who may not let a program do it.

    table: the statement that makes `supervisor_migrations`.  begin: starts the transaction.  now: an expression.
    """
    parts = [begin, table]
    for number, each in enumerate(known, 1):
        parts.append(f"-- {number}: {each.name}\n" + each.statements[0])
        parts += each.statements[1:]
        parts.append(
            "INSERT INTO supervisor_migrations (n, name, checksum, applied_at)\n"
            f"VALUES ({number}, '{each.name}', '{each.checksum}', {now})"
        )
    parts.append("COMMIT")
    return ";\n\n".join(parts) + ";\n"
