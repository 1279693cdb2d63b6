# SPDX-License-Identifier: Apache-2.0
import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from sfumato.datasets import files
from sfumato.datasets.errors import DataCorruptError, DataNotFoundError
from sfumato.datasets.files import Content, Form, find, member_of_tar, member_of_zip, read

DATA = b"what the authors published" * 40


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def content(*urls: str, forms: tuple[Form, ...] = ()) -> Content:
    return Content(path="set/data.bin", sha256=sha256(DATA), urls=urls, forms=forms)


def put(place: Path, name: str, data: bytes) -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def unpack(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def packed(data: bytes = DATA, *urls: str) -> tuple[Form, bytes]:
    file = gzip.compress(data, mtime=0)
    return Form(path="set/data.gz", sha256=sha256(file), urls=urls, decode=unpack), file


def left_in(place: Path) -> list[str]:
    return sorted(p.name for p in place.rglob("*") if p.is_file())


def test_a_file_is_read_from_the_folder_given(folder):
    put(folder, "set/data.bin", DATA)
    assert read(content(), folder=folder) == DATA


def test_a_file_is_read_from_the_folder_that_the_environment_names(folder, monkeypatch):
    put(folder, "set/data.bin", DATA)
    monkeypatch.setenv("SFUMATO_DATA", str(folder))
    assert read(content()) == DATA


def test_a_file_missing_in_the_folder_is_read_from_the_cache(folder, cache):
    put(cache, "set/data.bin", DATA)
    assert read(content(), folder=folder) == DATA


def test_a_wrong_file_in_the_folder_is_an_error_although_a_good_one_could_be_downloaded(folder, server):
    put(folder, "set/data.bin", b"something else")
    with pytest.raises(DataCorruptError, match="not the published file"):
        read(content(server.offer("data.bin", DATA)), folder=folder)
    assert server.requests == []


def test_a_truncated_file_in_the_folder_is_an_error(folder):
    put(folder, "set/data.bin", DATA[:-1])
    with pytest.raises(DataCorruptError, match="Delete it and try again"):
        read(content(), folder=folder)


def test_a_wrong_file_in_the_cache_is_an_error(cache):
    put(cache, "set/data.bin", DATA[:-1])
    with pytest.raises(DataCorruptError):
        read(content())


def test_a_packed_form_is_unpacked_and_the_result_is_kept(folder, cache):
    form, file = packed()
    path = put(folder, "set/data.gz", file)
    assert read(content(forms=(form,)), folder=folder) == DATA
    path.unlink()
    assert read(content(forms=(form,)), folder=folder) == DATA
    assert left_in(cache) == ["data.bin"]


def test_a_packed_form_with_a_wrong_checksum_is_not_unpacked(folder):
    form, file = packed()
    put(folder, "set/data.gz", file + b"more")
    with pytest.raises(DataCorruptError, match="not the published file"):
        read(content(forms=(form,)), folder=folder)


def test_a_packed_form_that_holds_something_else_is_an_error_and_is_not_kept(folder, cache):
    form, file = packed(b"something else")
    put(folder, "set/data.gz", file)
    with pytest.raises(DataCorruptError):
        read(content(forms=(form,)), folder=folder)
    assert left_in(cache) == []


def test_what_is_nowhere_else_is_downloaded_once(server, cache):
    wanted = content(server.offer("data.bin", DATA))
    assert read(wanted) == DATA and read(wanted) == DATA
    assert server.requests == ["/data.bin"]
    assert left_in(cache) == ["data.bin"]


def test_a_download_with_a_wrong_checksum_is_an_error_and_leaves_nothing(server, cache):
    with pytest.raises(DataCorruptError, match="not the published file"):
        read(content(server.offer("data.bin", b"something else")))
    assert left_in(cache) == []


def test_a_wrong_download_is_not_replaced_by_another_mirrors(server):
    first, second = server.offer("a.bin", b"something else"), server.offer("b.bin", DATA)
    with pytest.raises(DataCorruptError):
        read(content(first, second))
    assert server.requests == ["/a.bin"]


def test_a_download_that_breaks_off_is_an_error_and_leaves_nothing(server, cache):
    server.breaks_off = True
    with pytest.raises(DataNotFoundError, match="not downloadable from http"):
        read(content(server.offer("data.bin", DATA)))
    assert left_in(cache) == []


def test_a_mirror_that_fails_is_followed_by_the_next(server):
    assert read(content(server.url("absent.bin"), server.offer("data.bin", DATA))) == DATA
    assert server.requests == ["/absent.bin", "/data.bin"]


def test_a_form_is_downloaded_where_the_content_itself_is_not_offered(server, cache):
    _, file = packed()
    form, _ = packed(DATA, server.offer("data.gz", file))
    assert read(content(forms=(form,))) == DATA
    assert left_in(cache) == ["data.bin", "data.gz"]


def test_a_download_shows_its_progress_on_a_terminal(server, monkeypatch):
    seen = []
    monkeypatch.setattr(files.sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(files._Bar, "close", lambda bar: seen.append((bar.total, bar._progress.finished)))
    monkeypatch.setattr(
        files._Bar, "update", lambda bar, n: bar._progress.update(bar._task, total=bar.total, advance=n)
    )
    assert read(content(server.offer("data.bin", DATA))) == DATA
    assert seen == [(len(DATA), True)]


def test_the_progress_bar_draws_and_stops():
    bar = files._Bar("data.bin")
    bar.total = 10
    bar.update(4)
    bar.reset()
    bar.update(10)
    bar.close()
    assert bar._progress.finished


def test_a_cache_that_cannot_be_written_stops_a_download_with_the_remedy(server, unwritable_cache):
    with pytest.raises(DataNotFoundError, match="Set SFUMATO_CACHE to a folder that can"):
        read(content(server.offer("data.bin", DATA)))
    assert server.requests == []


def test_a_cache_that_cannot_be_written_does_not_stop_what_the_folder_holds(folder, unwritable_cache):
    form, file = packed()
    put(folder, "set/data.gz", file)
    assert read(content(forms=(form,)), folder=folder) == DATA


def test_what_has_no_public_source_says_where_to_put_it(folder):
    wanted = Content(path="set/data.bin", sha256=sha256(DATA), note="Ask the authors.")
    with pytest.raises(
        DataNotFoundError, match=r"Ask the authors. A copy belongs at set/data.bin in a folder"
    ):
        read(wanted, folder=folder)


def test_a_folder_that_does_not_exist_is_an_error_and_nothing_is_downloaded(tmp_path, server, monkeypatch):
    wanted = content(server.offer("data.bin", DATA))
    with pytest.raises(DataNotFoundError, match=r"folder is .*no folder"):
        read(wanted, folder=tmp_path / "absent")
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match=r"SFUMATO_DATA is .*no folder"):
        read(wanted)
    assert server.requests == []


def tar_of(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def zip_of(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


def test_a_member_of_a_tar_archive_is_read(server):
    archive = tar_of("inside/data.bin", DATA)
    urls = (server.offer("all.tar.gz", archive),)
    decode = member_of_tar("inside/data.bin")
    form = Form(path="set/all.tar.gz", sha256=sha256(archive), urls=urls, decode=decode)
    assert read(content(forms=(form,))) == DATA


def zip_form(url: str) -> Form:
    return Form(path="set/all.zip", sha256=None, urls=(url,), decode=member_of_zip("data.bin"))


def test_a_member_of_a_zip_archive_of_unknown_checksum_is_checked_itself(server):
    form = zip_form(server.offer("all.zip", zip_of("data.bin", DATA)))
    assert read(content(forms=(form,))) == DATA


@pytest.mark.parametrize(
    "archive",
    [zip_of("data.bin", b"something else"), zip_of("other.bin", DATA), b"no archive at all"],
    ids=["wrong content", "no such member", "no archive"],
)
def test_a_wrong_archive_of_unknown_checksum_is_an_error_and_leaves_nothing(server, cache, archive):
    form = zip_form(server.offer("all.zip", archive))
    with pytest.raises(DataCorruptError):
        read(content(forms=(form,)))
    assert left_in(cache) == []


def test_a_tar_archive_without_the_member_is_an_error(folder):
    put(folder, "set/all.tar", tar_of("other.bin", DATA))
    form = Form(path="set/all.tar", sha256=None, decode=member_of_tar("data.bin"))
    with pytest.raises(DataCorruptError, match="cannot be read"):
        read(content(forms=(form,)), folder=folder)


def test_find_says_what_is_here_without_fetching(folder, server):
    wanted = content(server.offer("data.bin", DATA))
    assert find(wanted, folder=folder) is None
    path = put(folder, "set/data.bin", DATA)
    assert find(wanted, folder=folder) == (wanted.itself, path)
    assert server.requests == []
