"""Downloads from a server on this machine that breaks off, starts anew or sends the wrong thing."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import threading
import warnings
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from undrift.data.catalogue import CATALOGUE, Content, Download, Entry, emnist_files
from undrift.data.fetch import check, fetch
from undrift.errors import DataError, RunError

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from undrift.cli.data import app

PAYLOAD = np.random.default_rng(0).bytes(300_000)


class Site:
    """What the server offers and how it misbehaves, and the requests that it saw."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: list[int] = []  # send only so many bytes, once for each number
        self.ranges = True
        self.seen: list[tuple[str, str | None]] = []
        self.url = ""


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.seen.append((self.path, wanted))
            if self.path not in state.files:
                self.send_error(404)
                return
            body = state.files[self.path]
            start = int(wanted[6:-1]) if wanted and state.ranges else 0
            if start >= len(body) > 0:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            keep = state.breaks.pop(0) if state.breaks else len(body)
            self.wfile.write(body[start:][:keep])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def md5(raw: bytes) -> str:
    return hashlib.md5(raw).hexdigest()


def offer(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    raw: bytes,
    contents: tuple[Content, ...],
    file: str,
    sum_of: bytes | None = None,
) -> None:
    """Put one archive on the site and a set "small" into the catalogue."""
    site.files[f"/{file}"] = raw
    download = Download(file, (f"{site.url}/{file}",), md5(sum_of or raw))
    monkeypatch.setitem(CATALOGUE, "small", Entry("a small set", "small-bin", (download,), contents))


def tar_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return out.getvalue()


CONTENTS = (Content("a.bin", md5(PAYLOAD), len(PAYLOAD)),)
ARCHIVE = tar_of({"small-bin/a.bin": PAYLOAD, "small-bin/readme.html": b"hello"})


def left(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_an_archive_is_fetched_checked_and_unpacked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(site, monkeypatch, ARCHIVE, CONTENTS, "small.tar.gz")
    folder = fetch("small", tmp_path / "new", progress=False)
    assert folder == tmp_path / "new" / "small-bin"
    assert (folder / "a.bin").read_bytes() == PAYLOAD
    assert left(tmp_path) == ["new/small-bin/a.bin"]  # neither archive nor pieces stay
    fetch("small", tmp_path / "new", progress=False)
    assert len(site.seen) == 1  # what is there and whole is not fetched again
    (folder / "a.bin").write_bytes(b"damaged")
    (folder / "mine.txt").write_text("stays")
    fetch("small", tmp_path / "new", progress=False)
    assert (folder / "a.bin").read_bytes() == PAYLOAD
    assert (folder / "mine.txt").read_text() == "stays"


def test_a_broken_connection_is_continued(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(site, monkeypatch, ARCHIVE, CONTENTS, "small.tar.gz")
    site.breaks = [100_000, 50_000]
    fetch("small", tmp_path, progress=False)
    assert [wanted for _, wanted in site.seen] == [None, "bytes=100000-", "bytes=150000-"]
    assert left(tmp_path) == ["small-bin/a.bin"]


def test_an_interrupted_download_is_continued_by_the_next(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(site, monkeypatch, ARCHIVE, CONTENTS, "small.tar.gz")
    site.breaks = [100_000, 0]
    with pytest.raises(RunError, match=r"small\.tar\.gz could not be fetched: .*closed after 100000 of"):
        fetch("small", tmp_path, progress=False)
    assert left(tmp_path) == ["small.tar.gz.part"]
    site.seen.clear()
    fetch("small", tmp_path, progress=False)
    assert [wanted for _, wanted in site.seen] == ["bytes=100000-"]
    assert left(tmp_path) == ["small-bin/a.bin"]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(
    "piece", [b"x" * 1000, b"x" * (len(ARCHIVE) + 5), ARCHIVE, ARCHIVE[:7]], ids=["short", "long", "all", "start"]
)
def test_any_leftover_piece_ends_in_the_right_file(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: bytes, ranges: bool
) -> None:
    offer(site, monkeypatch, ARCHIVE, CONTENTS, "small.tar.gz")
    site.ranges = ranges
    (tmp_path / "small.tar.gz.part").write_bytes(piece)
    fetch("small", tmp_path, progress=False)
    assert left(tmp_path) == ["small-bin/a.bin"]
    assert (tmp_path / "small-bin" / "a.bin").read_bytes() == PAYLOAD


def test_a_wrong_checksum_is_refused_and_nothing_stays(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(site, monkeypatch, ARCHIVE, CONTENTS, "small.tar.gz", sum_of=b"something else")
    with pytest.raises(RunError, match=rf"md5 {md5(ARCHIVE)} instead of {md5(b'something else')}"):
        fetch("small", tmp_path, progress=False)
    assert left(tmp_path) == []
    assert not (tmp_path / "small-bin").exists()


def test_the_next_mirror_is_tried(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files |= {"/bad/f-ubyte.gz": b"not it", "/good/f-ubyte.gz": gzip.compress(PAYLOAD)}
    urls = tuple(f"{site.url}/{folder}/f-ubyte.gz" for folder in ("absent", "bad", "good"))
    download = Download("f-ubyte.gz", urls, md5(site.files["/good/f-ubyte.gz"]))
    contents = (Content("f-ubyte.gz", md5(PAYLOAD)),)
    monkeypatch.setitem(CATALOGUE, "small", Entry("small", "small", (download,), contents))
    fetch("small", tmp_path, progress=False)
    assert left(tmp_path) == ["small/f-ubyte.gz"]
    assert [path for path, _ in site.seen] == ["/absent/f-ubyte.gz", "/bad/f-ubyte.gz", "/good/f-ubyte.gz"]
    fetch("small", tmp_path, progress=False)
    assert len(site.seen) == 3


def test_no_server_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = Download("a.tar.gz", ("http://127.0.0.1:9/a.tar.gz",), "0" * 32)
    monkeypatch.setitem(CATALOGUE, "small", Entry("small", "small", (download,), CONTENTS))
    with pytest.raises(RunError, match=r"http://127\.0\.0\.1:9/a\.tar\.gz: .*refused"):
        fetch("small", tmp_path, progress=False)


@pytest.mark.parametrize("name", ["../evil.bin", "/evil.bin", "small-bin/../../evil.bin", "..\\evil.bin"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_cannot_write_outside(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    raw = tar_of({"small-bin/a.bin": PAYLOAD, name: b"evil"})
    if kind == "zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as bundle:
            bundle.writestr("small-bin/a.bin", PAYLOAD)
            bundle.writestr(name, b"evil")
        raw = out.getvalue()
    offer(site, monkeypatch, raw, CONTENTS, f"small.{'tar.gz' if kind == 'tar' else 'zip'}")
    with pytest.raises(RunError, match="leads outside"):
        fetch("small", tmp_path / "in", progress=False)
    assert not [path for path in left(tmp_path) if path.endswith(".bin")]


def test_links_in_archives_are_not_followed(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("secret")
    raw = tar_of({"small-bin/b.bin": b""}, links={"small-bin/a.bin": str(tmp_path / "secret")})
    offer(site, monkeypatch, raw, CONTENTS, "small.tar.gz")
    with pytest.raises(RunError, match=r"does not hold a\.bin"):
        fetch("small", tmp_path / "in", progress=False)
    assert not (tmp_path / "in" / "small-bin").exists()


def test_an_archive_that_is_none(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("small.tar.gz", "small.zip"):
        offer(site, monkeypatch, b"not an archive", CONTENTS, file)
        with pytest.raises(RunError, match="cannot be unpacked"):
            fetch("small", tmp_path, progress=False)
        assert not (tmp_path / "small-bin").exists()


def test_a_folder_that_cannot_be_written(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(site, monkeypatch, ARCHIVE, CONTENTS, "small.tar.gz")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file.*: cannot be written"):
        fetch("small", tmp_path / "file" / "below", progress=False)


def test_progress_does_not_disturb(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    offer(site, monkeypatch, ARCHIVE, CONTENTS, "small.tar.gz")
    fetch("small", tmp_path, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "small.tar.gz" in err
    assert "\x1b" not in err


def test_check_tells_ok_missing_and_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = Download("a.tar.gz", ("http://127.0.0.1:9/",), "0" * 32)
    contents = (*CONTENTS, Content("b.bin", size=3))
    monkeypatch.setitem(CATALOGUE, "small", Entry("small", "small", (download,), contents))
    folder = tmp_path / "small"

    def state() -> tuple[str, str]:
        (report,) = check("small", tmp_path)
        return report.status, report.detail

    assert state() == ("missing", str(folder / "a.bin"))
    folder.mkdir()
    (folder / "a.bin").write_bytes(PAYLOAD)
    assert state() == ("missing", str(folder / "b.bin"))
    (folder / "b.bin").write_bytes(b"123")
    assert state() == ("ok", str(folder))
    (folder / "b.bin").write_bytes(b"1234")
    assert state() == ("damaged", f"{folder / 'b.bin'}: 4 bytes instead of 3")
    (folder / "b.bin").write_bytes(b"123")
    (folder / "a.bin").write_bytes(PAYLOAD[:-1] + b"?")
    assert state()[0] == "damaged"
    assert "a.bin: md5" in state()[1]


def test_check_looks_at_each_split_of_emnist(tmp_path: Path) -> None:
    assert [(r.name, r.status) for r in check("emnist", tmp_path)] == [("emnist", "missing")]
    folder = tmp_path / "emnist"
    folder.mkdir()
    for split in ("mine", "letters"):
        for file in emnist_files(split):
            (folder / file).write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab"))
    (folder / emnist_files("letters")[1]).write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x03ab"))
    assert [(r.name, r.status) for r in check("emnist", tmp_path)] == [
        ("emnist (letters)", "damaged"),
        ("emnist (mine)", "ok"),
    ]


def test_check_without_a_name_covers_all(tmp_path: Path) -> None:
    reports = check(root=tmp_path)
    assert [r.name for r in reports] == list(CATALOGUE)
    assert {r.status for r in reports} == {"missing"}


def test_the_catalogue_is_well_formed() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.contents, name
        for download in entry.downloads:
            assert re.fullmatch("[0-9a-f]{32}", download.md5), download.file
            assert all(re.match("https?://", url) for url in download.urls)
        assert all(c.md5 is None or re.fullmatch("[0-9a-f]{32}", c.md5) for c in entry.contents)
        assert entry.archive == (name not in ("mnist", "fashion-mnist"))


def test_the_commands(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(site, monkeypatch, ARCHIVE, CONTENTS, "small.tar.gz")
    run = CliRunner()
    root = ["--root", str(tmp_path)]
    listed = run.invoke(app, ["list", *root])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in ("digits", "cifar100", "npz"))
    assert run.invoke(app, ["check", "small", *root]).exit_code == 1
    got = run.invoke(app, ["get", "small", "--quiet", *root])
    assert got.exit_code == 0
    assert str(tmp_path / "small-bin") in got.output
    checked = run.invoke(app, ["check", *root])
    assert checked.exit_code == 0
    assert "small: ok" in checked.output
    assert "cifar10: missing" in checked.output
    (tmp_path / "small-bin" / "a.bin").write_bytes(b"")
    damaged = run.invoke(app, ["check", *root])
    assert damaged.exit_code == 1
    assert "small: damaged" in damaged.output
    assert "nothing to fetch" in run.invoke(app, ["get", "digits"]).output
    for command in ("list", "get", "check"):
        assert f"Example: undrift data {command}" in run.invoke(app, [command, "--help"]).output


@pytest.mark.parametrize("command", ["get", "check"])
def test_an_unknown_name_suggests_the_nearest(command: str) -> None:
    result = CliRunner().invoke(app, [command, "cifar-10"])
    assert isinstance(result.exception, DataError)
    assert "did you mean 'cifar10'?" in str(result.exception)
