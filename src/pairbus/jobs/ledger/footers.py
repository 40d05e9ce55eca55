"""The ends of a ledger's files, where Parquet says what is in them: looked at before Spark begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pairbus.jobs.ledger.errors import DamagedFileError, LedgerReadError, NewerLedgerError, WrongColumnsError
from pairbus.ledger.columns import NUMBER, TEXT, TIME, VERSION, VERSION_KEY

_MOST_THREADS: Final = 16


def _is_time(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit in {"ms", "us"} and kind.tz is not None


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {TIME: _is_time, TEXT: _is_text, NUMBER: pa.types.is_int64}


def check_footers(files: Iterable[Path], columns: Mapping[str, str]) -> None:
    """Raise for the first file that is damaged, newer than this program, or has other columns than these."""
    threads = min(_MOST_THREADS, 4 * (os.cpu_count() or 1))
    with ThreadPoolExecutor(threads, thread_name_prefix="pairbus-footers") as pool:
        checks = [pool.submit(check_footer, file, columns) for file in files]
        try:
            for check in checks:
                check.result()
        finally:
            pool.shutdown(cancel_futures=True)


def check_footer(file: Path, columns: Mapping[str, str]) -> None:
    """Raise if a file is damaged, newer than this program, or has other columns than these."""
    try:
        metadata = pq.read_metadata(file)
    except FileNotFoundError:
        return  # it was tidied away since it was listed: Spark will not see it either
    except pa.ArrowException as error:
        raise DamagedFileError(
            f"{file} is damaged, or no Parquet file: {_first_line(error)}; "
            "move it out of the ledger to read the rest without it"
        ) from error
    except OSError as error:
        raise LedgerReadError(f"{file} cannot be read: {error.strerror or _first_line(error)}") from error
    _check_version(file, metadata.metadata or {})
    _check_columns(file, metadata.schema.to_arrow_schema(), columns)


def _check_version(file: Path, metadata: Mapping[bytes, bytes]) -> None:
    written = metadata.get(VERSION_KEY.encode())
    if written is None:
        return  # its columns will tell
    if not written.isdigit():
        raise DamagedFileError(f"{file} has no number as its version of the ledger")
    if int(written) > VERSION:
        raise NewerLedgerError(
            f"{file} has version {int(written)} of the ledger, and this pairbus knows up to {VERSION}; "
            "install a newer one"
        )


def _check_columns(file: Path, schema: Any, columns: Mapping[str, str]) -> None:
    for name, kind in columns.items():
        if name not in schema.names:
            raise WrongColumnsError(f"{file} has no column {name!r}: it is not of this table, or not of a ledger")
        found = schema.field(name).type
        if not _FITS[kind](found):
            raise WrongColumnsError(f"{file} has {found} in the column {name!r}, which is a {kind}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
