# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.cli.project.passwords import has_password


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ann:secret@host/db",
        "postgresql+psycopg://ann:secret@host:5432/db",
        "postgresql://:secret@host/db",
        "postgresql://ann:se@cret@host/db",
        "postgresql://ann@host/db?password=secret",
        "postgresql://host/db?user=ann&passwd=secret",
    ],
)
def test_an_address_with_a_password_is_known(address):
    assert has_password(address)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ann@host/db",
        "postgresql://host:5432/db",
        "postgresql:///db?sslmode=require",
        "ledger.db",
    ],
)
def test_an_address_without_one_passes(address):
    assert not has_password(address)
