"""What a capture says while it runs, one line for each thing that happens."""

from __future__ import annotations

from datetime import UTC, datetime

from pairbus.jobs.capture.captured_file import CapturedFile
from pairbus.jobs.capture.order import CaptureOrder
from pairbus.jobs.lines import Line


def starting_line(order: CaptureOrder) -> Line:
    names, to = ", ".join(order.entities), str(order.to.absolute())
    return Line(event="starting", text=f"capturing {names} into {to}", facts={"entities": names, "to": to})


def spark_line(master: str) -> Line:
    text = f"starting Spark on {master}, which takes some seconds"
    return Line(event="spark", text=text, facts={"master": master})


def file_line(file: CapturedFile) -> Line:
    return Line(
        event="file",
        text=f"{file.path}: {file.messages:,} messages, {file.size_bytes:,} bytes",
        facts={
            "path": str(file.path),
            "entity": file.entity,
            "messages": file.messages,
            "bytes": file.size_bytes,
            "window_start": _written(file.window_start_ms),
            "window_end": _written(file.window_end_ms),
        },
    )


def retry_line(reason: str) -> Line:
    text = f"the query begins again after: {reason}"
    return Line(event="retry", text=text, facts={"reason": reason}, is_warning=True)


def waiting_line(entity: str, messages: int) -> Line:
    text = f"{messages:,} messages of '{entity}' wait: somebody has them locked"
    return Line(event="waiting", text=text, facts={"entity": entity, "messages": messages}, is_warning=True)


def stopping_line() -> Line:
    return Line(event="stopping", text="stopping: what is under way is finished, and put into files")


def ended_line(messages: int, files: int) -> Line:
    text = f"{_counted(messages, 'message')} captured, {_counted(files, 'file')} written"
    return Line(event="ended", text=text, facts={"messages": messages, "files": files})


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _written(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds")
