# SPDX-License-Identifier: Apache-2.0
from html import unescape

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sfumato.report.cards.markdown import escaped

visible = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))


@given(visible)
def test_text_is_shown_as_it_is(text):
    shown = MarkdownIt("commonmark").renderInline(escaped(text))
    assert unescape(shown) == " ".join(text.split())


def test_addresses_do_not_become_links():
    # What GitHub links by itself needs these letters in one piece.
    for address in ("https://a.b", "http://a.b", "www.a.b", "a@b.c"):
        assert address not in escaped(address)
