"""The journal: what is finished is taken up with equal versions only, also after a crash in the middle of a line."""

from __future__ import annotations

import errno
import os

import pytest

from opwright.errors import CheckError
from opwright.sweep.journal import Journal
from tests.sweep.work_items import Square, Squared

VERSIONS = {"opwright": "1", "torch": "2.14"}


def write(file, *numbers, versions=VERSIONS):
    with Journal(file, versions) as journal:
        for number in numbers:
            journal.add(Square(number), Squared(number**2))


def read(file, *numbers, versions=VERSIONS):
    with Journal(file, versions) as journal:
        return journal.known([Square(n) for n in numbers]), journal.describe()


def test_what_is_finished_is_taken_up_and_said(tmp_path):
    write(tmp_path / "j", 2, 3)
    found, text = read(tmp_path / "j", 3, 4)
    assert found == {0: Squared(9)}
    assert text == (
        f"1 finished before are taken from {tmp_path / 'j'}; "
        "1 in it are not: they are of other sources, settings or versions"
    )


def test_an_empty_journal_says_nothing(tmp_path):
    assert read(tmp_path / "j", 1) == ({}, "")
    assert read(tmp_path / "j", 1) == ({}, "")


def test_results_of_other_versions_are_left_and_named(tmp_path):
    write(tmp_path / "j", 2, versions={**VERSIONS, "torch": "2.11"})
    write(tmp_path / "j", 3)
    found, text = read(tmp_path / "j", 2, 3)
    assert found == {1: Squared(9)}
    assert text.endswith("; torch was 2.11, and is 2.14")


@pytest.mark.parametrize("bytes_left", [1, 20, 40])
def test_a_line_that_was_cut_off_is_run_again_and_what_follows_is_kept(tmp_path, bytes_left):
    file = tmp_path / "j"
    write(file, 2, 3)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:bytes_left])
    assert read(file, 2, 3)[0] == {0: Squared(4)}
    write(file, 3)
    assert read(file, 2, 3)[0] == {0: Squared(4), 1: Squared(9)}


def test_a_result_of_another_form_is_run_again(tmp_path):
    file = tmp_path / "j"
    write(file, 2)
    file.write_text(file.read_text().replace('"value": 4', '"values": [4]'))
    assert read(file, 2)[0] == {}


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path):
    for text in ("{}\n", "[1, 2]\n", "no JSON\n", '{"schema": "opwright.check/3"}\n'):
        file = tmp_path / "other.json"
        file.write_text(text)
        with pytest.raises(CheckError, match="line 1") as error:
            Journal(file, VERSIONS)
        assert "--resume" in error.value.message
        assert file.read_text() == text


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckError, match="No such file or directory"):
        Journal(tmp_path / "no" / "j", VERSIONS)


def test_a_journal_that_goes_on_writes_what_it_could_not_write_before(tmp_path, monkeypatch):
    file, written = tmp_path / "j", os.write

    def full(descriptor, data):
        written(descriptor, data[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(file, VERSIONS, goes_on=True) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            for number in (2, 3):
                journal.add(Square(number), Squared(number**2))
        assert journal.unwritten == f"2 results could not be written to {file}: No space left on device"
        assert read(file, 2, 3)[0] == {}
        journal.add(Square(4), Squared(16))
        assert journal.unwritten == ""
    assert read(file, 2, 3, 4)[0] == {0: Squared(4), 1: Squared(9), 2: Squared(16)}


def test_a_full_disk_is_said_and_loses_nothing_that_was_written(tmp_path, monkeypatch):
    file = tmp_path / "j"
    with Journal(file, VERSIONS) as journal:
        journal.add(Square(2), Squared(4))
        written = os.write

        def full(descriptor, data):
            written(descriptor, data[:7])  # a part of it still fits
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(CheckError, match="No space left on device") as error:
                journal.add(Square(3), Squared(9))
    assert "what is finished stays in it" in error.value.fix
    assert read(file, 2, 3)[0] == {0: Squared(4)}
