# SPDX-License-Identifier: Apache-2.0
import json
import math
import re
from html.parser import HTMLParser

import pytest
import yaml
from markdown_it import MarkdownIt

from sfumato import Relation
from sfumato.errors import InvalidParameterError
from sfumato.report import CardAudit, CardTable

HOSTILE = (
    "<script>alert(1)</script> [a](https://b.c) ![c](https://d.e) `f` | *g*\n---\n# h\n"
    '<img src=x onerror=y> "'
)
PLAIN = {"h1", "h2", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    """Collect the names of tags, and of attributes that run or load something."""

    def __init__(self):
        super().__init__()
        self.names, self.active = set(), set()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.active |= {name for name, _ in attrs if name.startswith("on") or name in ("src", "href")}


def tags(markup):
    found = Tags()
    found.feed(markup)
    return found


def hostile(make):
    return make(
        title=HOSTILE,
        released=HOSTILE,
        privacy_unit=HOSTILE,
        account=HOSTILE,
        study_note=HOSTILE,
        record_note=HOSTILE,
        mechanism=(HOSTILE,),
        facts={HOSTILE: HOSTILE},
        tables=(CardTable(title=HOSTILE, heads=(HOSTILE,), rows=((HOSTILE,), (None,))),),
        audit=CardAudit(statement=HOSTILE, refuted=True),
    )


def test_hostile_names_are_text_in_markdown(make):
    rendered = tags(MarkdownIt("commonmark").enable("table").render(hostile(make).to_markdown()))
    assert rendered.names <= PLAIN | {"blockquote", "strong"} and not rendered.active


def test_the_check_of_markdown_has_power():
    rendered = tags(MarkdownIt("commonmark").enable("table").render(f"x {HOSTILE}"))
    assert {"script", "a", "img"} <= rendered.names and {"src", "href", "onerror"} <= rendered.active


def test_hostile_names_are_text_in_html(make):
    found = tags(hostile(make).to_html())
    assert not found.names & {"script", "img", "a", "link", "iframe"} and not found.active


def test_hostile_names_stay_values_in_the_header(make):
    header = hostile(make).header()
    assert header.startswith("---\n") and header.endswith("\n---\n") and header.count("\n---") == 1
    read = yaml.safe_load(header.removesuffix("---\n"))
    assert read["differential_privacy"]["account"] == HOSTILE
    assert set(read) == {"tags", "differential_privacy"}


def test_numbers_err_upwards_and_the_audit_downwards(make):
    card = make(audit=CardAudit(statement="It stands.", epsilon_lower_bound=1.23999, confidence=0.95))
    facts = card.metadata()["differential_privacy"]
    assert facts["epsilon"] == 2.383 and facts["audit_epsilon_lower_bound"] == 1.23
    assert "| epsilon | at most 2.383 |" in card.to_markdown()
    assert json.loads(card.to_json())["guarantee"]["epsilon"] == 2.38201


def test_the_header_reads_back_as_the_metadata(make):
    card = make(epsilon=math.inf, accountant="pld", release_number=3, finished="2026-01-31")
    assert yaml.safe_load(card.header().removesuffix("---\n")) == card.metadata()
    assert isinstance(card.metadata()["differential_privacy"]["delta"], float)


def test_the_header_is_what_hugging_face_reads(make):
    cards = pytest.importorskip("huggingface_hub")
    read = cards.ModelCard(make(account="clinic").to_model_card())
    assert read.data.tags == ["differential-privacy", "sfumato"]
    assert (
        read.data.to_dict()["differential_privacy"]
        == make(account="clinic").metadata()["differential_privacy"]
    )
    assert read.text.strip().startswith("# Privacy card: A model")


@pytest.mark.parametrize("format", ["to_markdown", "to_html"])
def test_noise_that_does_not_protect_comes_first_and_promises_nothing(make, format):
    card = make(study_note="for study only: the noise was seeded")
    text = getattr(card, format)()
    warning = text.index("This release does not protect anyone.")
    assert warning < text.index("What was released") and "they conclude" not in text
    assert "differential-privacy" not in card.metadata()["tags"]
    assert card.metadata()["differential_privacy"]["secure_noise"] is False
    assert card.metadata()["differential_privacy"]["protects"] is False


def test_a_false_claim_comes_first(make):
    card = make(audit=CardAudit(statement="THE CLAIM IS FALSE.", epsilon_lower_bound=9.0, refuted=True))
    assert card.to_markdown().index("The claim is false") < card.to_markdown().index("What was released")
    assert not card.protects and "differential-privacy" not in card.metadata()["tags"]


def test_a_time_of_day_is_refused(make):
    for moment in ("2026-01-31T10:00", "2026-01-31 10:00:05", "12.5 s"):
        with pytest.raises(InvalidParameterError, match="finished must be a day"):
            make(finished=moment)
    assert make(finished="2026-01-31").finished == "2026-01-31"


def test_the_page_loads_nothing(make):
    page = make().to_html()
    assert "default-src &#x27;none&#x27;" in page and not re.search(r"https?://", page)


@pytest.mark.parametrize(
    ("charged", "words"), [(True, "is charged"), (False, "is not charged"), (None, "as far as")]
)
def test_a_card_says_whether_tuning_was_charged(make, charged, words):
    assert words in make(tuning_charged=charged).to_markdown()


def test_infinite_epsilon_is_no_protection(make):
    assert "does not protect anyone" in make(epsilon=math.inf).to_markdown()
    assert json.loads(make(epsilon=math.inf).to_json())["guarantee"]["epsilon"] is None


def test_a_label_is_not_the_label_of_a_label(make):
    card = make(privacy_unit="label", relation=Relation.REPLACE_LABEL)
    assert "label of any one label" not in card.to_markdown()
    assert "label that any one label" not in card.to_markdown()


def test_a_table_needs_an_entry_for_each_column():
    with pytest.raises(InvalidParameterError, match="one entry for each column"):
        CardTable(title="t", heads=("a", "b"), rows=((1,),))


def test_a_notebook_shows_the_card_as_markdown(make):
    assert make()._repr_markdown_() == make().to_markdown()
