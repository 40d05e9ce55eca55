"""Fixtures of stored formats: an archive of what a version has written, and beside it what must be found in it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pairbus
from tests.formats.archive import pack, unpack
from tests.formats.format_versions import stored_versions

ROOT: Final = Path(__file__).parent
_ARCHIVE: Final = ".tar.xz"
_MANIFEST: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """The data of one kind that one version wrote."""

    version: str
    """The version and a label: the name of the directory."""

    kind: str
    manifest: Mapping[str, Any]

    @classmethod
    def read(cls, manifest: Path) -> Self:
        return cls(version=manifest.parent.name, kind=manifest.stem, manifest=json.loads(manifest.read_text("utf-8")))

    @property
    def name(self) -> str:
        return f"{self.version}/{self.kind}"

    @property
    def made_ms(self) -> int:
        """Return the time of its creation; nothing in it is later, except scheduled messages."""
        return int(self.manifest["made_ms"])

    @property
    def formats(self) -> Mapping[str, list[int]]:
        """The versions of the formats in it, by the name of the format."""
        found: Mapping[str, list[int]] = self.manifest["formats"]
        return found

    def unpack(self, directory: Path) -> None:
        unpack(ROOT / self.version / (self.kind + _ARCHIVE), directory)


def fixtures(kind: str | None = None) -> Iterator[Fixture]:
    """Yield the fixtures of all versions, or those of one kind."""
    for manifest in sorted(ROOT.glob(f"*/*{_MANIFEST}")):
        if kind is None or manifest.stem == kind:
            yield Fixture.read(manifest)


def directory_of(label: str) -> Path:
    """Return where the fixtures of this version are written to."""
    return ROOT / f"{pairbus.__version__}-{label}"


def write_fixture(directory: Path, kind: str, content: Path, expected: Mapping[str, Any]) -> None:
    """Pack what lies in a directory that no process uses any more, and write what must be found in it."""
    pack(content, directory / (kind + _ARCHIVE))
    manifest = {"made_ms": time.time_ns() // 1_000_000, "formats": stored_versions(content), **expected}
    (directory / (kind + _MANIFEST)).write_text(_text(manifest) + "\n", encoding="utf-8")


def _text(value: Any, depth: int = 3) -> str:
    """Return JSON with a line for each message: short, and good to compare."""
    parts = [*value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    if not depth or not any(isinstance(part, Mapping | list) for part in parts):
        return json.dumps(value, ensure_ascii=False)
    lines = [_text(part, depth - 1) for part in parts]
    if isinstance(value, Mapping):
        named = zip(map(json.dumps, value), lines, strict=True)
        return "{\n" + ",\n".join(f"{name}: {line}" for name, line in named) + "\n}"
    return "[\n" + ",\n".join(lines) + "\n]"
