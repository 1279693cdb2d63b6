# SPDX-License-Identifier: Apache-2.0
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.errors import QueryFailedError
from sfumato.pate.teaching.files import TeacherFolder, is_trained, read, write

KEY, SECRET = bytes(32), bytes(range(32))


def test_what_is_written_is_read_by_its_key_and_secret_only(tmp_path):
    place = tmp_path / "teacher"
    write(place, b"content", key=KEY, secret=SECRET)
    assert read(place, key=KEY, secret=SECRET) == b"content"
    assert not is_trained(place, key=SECRET, secret=SECRET)
    assert not is_trained(place, key=KEY, secret=KEY)
    assert not is_trained(tmp_path / "absent", key=KEY, secret=SECRET)
    with pytest.raises(QueryFailedError):
        read(place, key=KEY, secret=KEY)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_changed_or_missing_byte_is_noticed(tmp_path, data):
    place = tmp_path / "teacher"
    write(place, b"some content", key=KEY, secret=SECRET)
    whole = bytearray(place.read_bytes())
    spot = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[spot] ^= data.draw(st.integers(1, 255))
    else:
        del whole[spot:]
    place.write_bytes(whole)
    assert not is_trained(place, key=KEY, secret=SECRET)


def test_a_file_is_private_also_where_a_part_was_left_that_is_not(tmp_path):
    part = tmp_path / "teacher.part"
    part.write_bytes(b"left by a process that was killed")
    part.chmod(0o644)
    write(tmp_path / "teacher", b"content", key=KEY, secret=SECRET)
    assert stat.S_IMODE((tmp_path / "teacher").stat().st_mode) == 0o600 and not part.exists()


def test_queries_have_a_file_and_key_of_their_own_while_teachers_vote(tmp_path):
    folder = TeacherFolder(tmp_path)
    with folder.queries(b"rows", secret=SECRET) as first, folder.queries(b"other", secret=SECRET) as second:
        assert read(first[0], key=first[1], secret=SECRET) == b"rows"
        assert read(second[0], key=second[1], secret=SECRET) == b"other"
        with pytest.raises(QueryFailedError):
            read(first[0], key=second[1], secret=SECRET)
    assert list(tmp_path.glob("queries*")) == []
