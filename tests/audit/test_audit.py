# SPDX-License-Identifier: Apache-2.0
"""What the room offers: every name is there, and what attacks models is loaded when it is first used."""

import subprocess
import sys

import pytest

from sfumato import audit
from sfumato.audit import _HOMES


@pytest.mark.parametrize("name", audit.__all__)
def test_every_public_name_can_be_used(name):
    value = getattr(audit, name)
    assert callable(value) or isinstance(value, tuple)  # EVENTS: the searches
    assert name in dir(audit)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'atack'"):
        audit.atack  # noqa: B018 - the access is what is tested


def test_a_function_is_not_hidden_by_the_module_that_it_is_in():
    for name in ("attack", "replay", "shadow_models"):
        assert getattr(audit, name).__module__ == f"sfumato.audit.{_HOMES[name]}"


def test_attacks_on_models_are_loaded_when_they_are_first_used():
    modules = {f"sfumato.audit.{home}" for home in _HOMES.values()} - {"sfumato.audit.models.shadow_models"}
    code = f"""
import sys
from sfumato import audit
print(sorted(set({sorted(modules)}) & set(sys.modules)), audit.Lira.__module__)
"""
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["[]", "sfumato.audit.models.membership"]
