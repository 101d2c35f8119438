"""A file is the old one or the new one, whatever goes wrong meanwhile."""

import errno
import os
import secrets
import stat
from pathlib import Path

import pytest

from weft.files import writing
from weft.files.writing import remove_scraps, replacing, unwritten, write_whole


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for body in (b"old", b"new"):
        write_whole(path, body)
        assert path.read_bytes() == body
    assert os.listdir(tmp_path) == ["a"]


def test_what_breaks_off_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def stopped() -> None:
        with replacing(path) as beside:
            beside.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "p"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"text")


def names_to_come(patch: pytest.MonkeyPatch, *names: str) -> None:
    """The names that a writer draws, as if somebody could foresee them."""
    drawn = iter(names)
    patch.setattr(secrets, "token_hex", lambda _bytes: next(drawn))


def test_a_link_under_a_foreseen_name_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of the folder, as of /tmp, has links to our files wait there."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    for name in (f".a.{os.getpid()}", ".a.00000001"):
        (tmp_path / name).symlink_to(precious)
    names_to_come(monkeypatch, "00000001", "00000002")
    write_whole(tmp_path / "a", b"new")
    assert precious.read_bytes() == b"mine"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a").is_symlink()


def test_names_are_not_drawn_twice(tmp_path: Path) -> None:
    names = set()
    for _ in range(20):
        with replacing(tmp_path / "a"):
            (name,) = {name for name in os.listdir(tmp_path) if name != "a"}
            names.add(name)
    assert len(names) == 20


def test_permissions_are_the_old_file_s_or_a_new_one_s(tmp_path: Path) -> None:
    path, other = tmp_path / "secret", tmp_path / "new"
    path.write_bytes(b"old")
    path.chmod(0o600)
    before = os.umask(0o027)
    try:
        write_whole(path, b"new")
        write_whole(other, b"new")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, other)] == [0o600, 0o640]


def test_scraps_of_killed_writers_go_and_nothing_else(tmp_path: Path) -> None:
    scraps = [".a.12345", ".a.0123abcd"]
    others = ["a", ".a.json", ".a.0123abcde", ".b.0123abcd"]
    for name in (*scraps, *others):
        (tmp_path / name).touch()
    remove_scraps(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_remedies_fit_what_went_wrong() -> None:
    def said(number: int) -> str:
        return str(unwritten("f", OSError(number, os.strerror(number))))

    full = "f: cannot be written: No space left on device; free space, or choose another disk"
    assert said(errno.ENOSPC) == full
    assert said(errno.EACCES).endswith("Permission denied; choose a path that you may write to")
    assert said(errno.EROFS).endswith("Read-only file system; choose a path on another disk")
    assert said(errno.EIO) == "f: cannot be written: Input/output error"
    assert set(writing.ANYWHERE) <= set(writing._REMEDIES)


def test_a_device_stays_one_and_says_that_it_is_full() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_whole(Path("/dev/full"), b"text")
    assert Path("/dev/full").is_char_device()
