# SPDX-License-Identifier: Apache-2.0
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.report.cards import yaml_header

# Half of a surrogate pair cannot be in a file of text.
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = texts | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False)


@given(st.lists(values, min_size=1), values)
def test_every_value_reads_back_as_it_was(listed, single):
    header = yaml_header.written({"listed": listed, "nested": {"single": single}})
    read = yaml.safe_load(header.removesuffix("---\n"))
    assert read == {"listed": listed, "nested": {"single": single}}
    assert type(read["nested"]["single"]) is type(single)


def test_other_values_are_refused():
    with pytest.raises(InvalidParameterError, match="plain values, not a object"):
        yaml_header.written({"a": object()})
