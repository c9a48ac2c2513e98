"""Fetch published data sets, and check the files of those that are there.

A download goes to `FILE.part` and continues from there after an interruption; only a file with the
published checksum is ever renamed into place, and archives are unpacked beside their target first.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from undrift.data.catalogue import CATALOGUE, Content, Download, Entry, emnist_files
from undrift.data.formats import parse_idx, read_bytes
from undrift.data.loading import data_root
from undrift.errors import DataError, RunError

CHUNK = 1 << 18

Advance = Callable[[int, int | None], None]
"""Told the bytes there are so far and the total, if known."""


@dataclass(frozen=True)
class Report:
    """The state of one data set's files: "ok", "missing" or "damaged", and which file is to blame."""

    name: str
    status: str
    detail: str = ""


def fetch(name: str, root: str | Path | None = None, progress: bool = True) -> Path:
    """Bring data set `name` into `root` and return its folder; nothing is fetched twice."""
    entry, base = CATALOGUE[name], data_root(root)
    folder = base / entry.folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if all(_fault(folder, content, name) == "" for content in entry.contents):
            return folder
        for download in entry.downloads:
            if entry.archive:
                archive = _download(download, base, progress)
                _unpack(archive, entry, base)
                archive.unlink()
            else:
                folder.mkdir(exist_ok=True)
                _download(download, folder, progress)
    except (RunError, DataError):
        raise
    except OSError as error:
        raise DataError(f"{error.filename or base}: cannot be written ({error.strerror or error})") from None
    return folder


def check(name: str | None = None, root: str | Path | None = None) -> list[Report]:
    """Verify the files of one data set, or of all: checksum where it is known, else size or format."""
    base = data_root(root)
    reports = []
    for known, entry in CATALOGUE.items():
        if name in (None, known):
            reports += (
                _check_emnist(base) if known == "emnist" else [_check(known, base / entry.folder, entry.contents)]
            )
    return reports


def _check(name: str, folder: Path, contents: tuple[Content, ...]) -> Report:
    faults = {content.file: _fault(folder, content, name) for content in contents}
    for status in ("damaged", "missing"):
        for file, fault in faults.items():
            if fault.startswith(status):
                return Report(name, status, f"{folder / file}{fault.removeprefix(status)}")
    return Report(name, "ok", str(folder))


def _check_emnist(base: Path) -> list[Report]:
    """Each split by itself: one may have some of them, and splits of one's own."""
    folder = base / "emnist"
    found = {path.name.split("-")[1] for path in folder.glob("emnist-*-ubyte.gz")}
    reports = [
        _check(f"emnist ({split})", folder, tuple(Content(file) for file in emnist_files(split)))
        for split in sorted(found)
    ]
    return reports or [Report("emnist", "missing", str(folder))]


def _fault(folder: Path, content: Content, name: str) -> str:
    """What is wrong with a file: "" when nothing is, else "missing" or "damaged: …"."""
    path = folder / content.file
    if not path.is_file():
        return "missing"
    try:
        raw = read_bytes(path, name)
        if path.suffix == ".gz":
            parse_idx(raw, path)
    except DataError as error:
        return f"damaged: {str(error).removeprefix(f'{path}: ')}"
    if content.size is not None and len(raw) != content.size:
        return f"damaged: {len(raw)} bytes instead of {content.size}"
    if content.md5 is not None and _md5_of(raw) != content.md5:
        return f"damaged: md5 {_md5_of(raw)} instead of {content.md5}"
    return ""


def _md5_of(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def _md5_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download(download: Download, folder: Path, progress: bool) -> Path:
    """Fetch one file, verify it, rename it into place; one that is there and right is kept."""
    target = folder / download.file
    if target.is_file() and _md5_of_file(target) == download.md5:
        return target
    part = target.with_name(target.name + ".part")
    problems = []
    for url in download.urls:
        try:
            with _bar(download.file, progress) as advance:
                resumed = part.exists()
                _fill(url, part, download.size, advance)
                if resumed and _md5_of_file(part) != download.md5:
                    part.unlink()  # the piece was of something else: once more, from the start
                    _fill(url, part, download.size, advance)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            problems.append(f"{url}: {getattr(error, 'reason', None) or error}")
            continue
        found = _md5_of_file(part)
        if found == download.md5:
            os.replace(part, target)
            return target
        part.unlink()
        problems.append(f"{url}: md5 {found} instead of {download.md5}, refused")
    raise RunError(f"{download.file} could not be fetched: {'; '.join(problems)}")


def _fill(url: str, part: Path, size: int | None, advance: Advance) -> None:
    """Append to `part` until it is complete, asking again for the rest as long as more arrives."""
    while True:
        before = part.stat().st_size if part.exists() else 0
        total = _append(url, part, before, size, advance)
        after = part.stat().st_size
        if total is None or after >= total:
            return
        if after <= before:
            raise ConnectionError(f"connection closed after {after} of {total} bytes; the next try continues there")


def _append(url: str, part: Path, start: int, size: int | None, advance: Advance) -> int | None:
    """Make one request for what follows byte `start`; return the full length if the server tells."""
    headers = {"User-Agent": "undrift"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        return start  # nothing follows: the checksum decides whether that is the whole file
    with answer, part.open("ab" if answer.status == http.client.PARTIAL_CONTENT else "wb") as out:
        length = answer.headers.get("Content-Length")
        total = size if length is None else out.tell() + int(length)
        advance(out.tell(), total)
        _copy(answer, out, lambda: advance(out.tell(), total))
    return total


def _copy(source: IO[bytes], out: IO[bytes], each: Callable[[], None]) -> None:
    with contextlib.suppress(ConnectionResetError, http.client.IncompleteRead):  # the caller asks again
        while chunk := source.read(CHUNK):
            out.write(chunk)
            each()


@contextlib.contextmanager
def _bar(title: str, shown: bool) -> Iterator[Advance]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _unpack(archive: Path, entry: Entry, base: Path) -> None:
    """Unpack the set's files beside their folder, then move them in."""
    wanted = {content.file for content in entry.contents}
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=base) as name:
        fresh = Path(name) / entry.folder
        fresh.mkdir()
        try:
            for file, stream in _members(archive):
                if file in wanted:
                    with (fresh / file).open("wb") as out:
                        shutil.copyfileobj(stream, out, CHUNK)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise RunError(f"{archive}: cannot be unpacked ({error})") from None
        absent = sorted(wanted - {path.name for path in fresh.iterdir()})
        if absent:
            raise RunError(f"{archive}: does not hold {absent[0]}")
        target = base / entry.folder
        if not target.exists():
            os.replace(fresh, target)
            return
        for path in fresh.iterdir():
            os.replace(path, target / path.name)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The plain files of a tar or zip archive, by bare name; a name that leads outside is refused."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as bundle:
            for info in bundle.infolist():
                _refuse_outside(info.filename, archive)
                if not info.is_dir():
                    with bundle.open(info) as stream:
                        yield PurePosixPath(info.filename).name, stream
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            _refuse_outside(member.name, archive)
            plain = tar.extractfile(member) if member.isreg() else None
            if plain is not None:
                yield PurePosixPath(member.name).name, plain


def _refuse_outside(name: str, archive: Path) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise RunError(f"{archive}: refused, the member {name!r} leads outside the folder")
