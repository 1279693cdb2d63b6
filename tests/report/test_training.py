# SPDX-License-Identifier: Apache-2.0
import math
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from sfumato.accounting import Guarantee, Relation
from sfumato.report import TrainingFacts, escape, page, training_report, write_report

HOSTILE = """<script>alert('1')</script><img src=x onerror="alert(2)"> & ]]>"""
VOID = {"meta"}


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that every tag that is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def measured(step, epsilon=1.0, loss=None, accuracy=None):
    return SimpleNamespace(step=step, epsilon=epsilon, loss=loss, accuracy=accuracy)


HISTORY = [measured(10, 0.5, 2.1, 0.3), measured(20, 1.0, 1.2, 0.75), measured(30, 1.23456, 0.9, 0.912)]


def guarantee(**changes):
    facts = {"epsilon": 1.23456, "delta": 1e-5, "relation": Relation.ADD_REMOVE, "privacy_unit": "example"}
    return Guarantee(**(facts | changes))


def facts(**changes):
    known = {
        "data": "digits",
        "model": "mlp",
        "guarantee": guarantee(),
        "statement": "The model was trained by DP-SGD in 30 noisy steps.",
        "history": HISTORY,
        "settings": {"clip norm": 1.0, "optimizer": "SGD"},
    }
    return TrainingFacts(**(known | changes))


def report(*, title="Digits", ledger_statement=None, **changes):
    return training_report(facts(**changes), title=title, ledger_statement=ledger_statement)


def test_the_page_says_what_was_learned_and_what_it_cost():
    text = report()
    for said in (
        "<h1>Digits</h1>",
        "mlp trained on digits",
        "91.2%",
        "1.235",
        "1e-05",
        "add-remove neighbors",
    ):
        assert said in text, said
    assert "The model was trained by DP-SGD in 30 noisy steps." in text
    assert "SGD" in text


def test_the_promise_is_told_with_figures_that_err_upwards():
    text = report(guarantee=guarantee(epsilon=1.0, delta=1e-6))
    assert "at most 2.72 times as often" in text  # e is 2.7182...
    assert "at most 73.2% sure" in text  # e / (1 + e) is 0.7310...
    assert "apart from a probability of 1e-06" in text
    assert "apart from" not in report(guarantee=guarantee(delta=0.0))
    assert "not protect anyone" in report(guarantee=guarantee(epsilon=math.inf))


@pytest.mark.parametrize("relation", list(Relation), ids=lambda r: r.value)
def test_the_promise_names_the_neighbors_and_the_unit(relation):
    text = report(guarantee=guarantee(relation=relation, privacy_unit="patient"))
    assert "with any one patient" in text or "with the label that any one patient has" in text
    assert ("not protected" in text.split("<h2>How it went")[0]) == (relation is Relation.REPLACE_LABEL)


def test_three_curves_are_valid_xml_with_words():
    pictures = re.findall(r"<svg.*?</svg>", report(), re.DOTALL)
    titles = [ElementTree.fromstring(p).find("{http://www.w3.org/2000/svg}title").text for p in pictures]
    assert titles == ["Accuracy on evaluation data", "Loss on evaluation data", "Privacy spent"]


def test_the_curves_are_there_as_a_table_too():
    table = report().split("<details>")[1].split("</details>")[0]
    assert [cell for cell in re.findall(r"<td>(.*?)</td>", table)][-4:] == ["30", "1.235", "0.9000", "91.20%"]


def test_a_run_without_evaluation_has_one_curve():
    text = report(history=[measured(10, 0.5), measured(20, 1.0)])
    assert text.count("<svg") == 1 and "accuracy on evaluation data" not in text


@pytest.mark.parametrize("history", [[], [measured(1, 0.1, 2.0, 0.1)]], ids=["empty", "one point"])
def test_short_histories_make_a_page(history):
    Tags(report(history=history))


def test_values_that_are_not_finite_make_a_page():
    Tags(report(history=[measured(1, math.inf, math.nan, math.nan), measured(2, math.inf, math.inf, 0.5)]))


def test_noise_that_protects_nobody_is_said_first():
    text = report(study_note="for study only: the noise was seeded")
    assert "For study only: the noise was seeded. This run does not protect anyone." in text
    assert text.index("not protect anyone") < text.index("<h2>")
    assert "not protect anyone" not in report()


def test_the_ledgers_statement_is_shown_if_there_is_one():
    assert "Privacy statement of account &#x27;digits&#x27;" in report(
        ledger_statement="Privacy statement of account 'digits'"
    )
    assert "<h2>Ledger" not in report()


def test_hostile_words_are_shown_as_text_everywhere():
    known = Tags(report(ledger_statement="all is well", study_note="for study only"))
    hostile = Tags(
        report(
            title=HOSTILE,
            data=HOSTILE,
            model=HOSTILE,
            statement=HOSTILE,
            guarantee=guarantee(privacy_unit=HOSTILE),
            settings={HOSTILE: HOSTILE, "optimizer": HOSTILE},
            study_note=HOSTILE,
            ledger_statement=HOSTILE,
        )
    )
    assert hostile.tags == known.tags


def test_the_page_refers_to_nothing_outside_and_runs_nothing():
    found = Tags(report(ledger_statement="all is well"))
    assert not {"script", "link", "img", "iframe", "object", "embed", "a", "form", "base"} & set(found.tags)
    names = {name for name, _ in found.attributes}
    assert not {"src", "href", "xlink:href", "srcset", "action", "data"} & names
    assert not [name for name in names if name.startswith("on")]
    text = report().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert "default-src &#x27;none&#x27;" in text


def test_the_page_is_for_everybody():
    text = report()
    assert '<html lang="en">' in text and 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") == text.count('role="img"') == text.count("<figcaption>")
    assert re.findall(r"<h(\d)", text)[:2] == ["1", "2"]


def test_a_report_is_written_whole(tmp_path):
    place = write_report(tmp_path / "new" / "report.html", report(title="Ünïcode"))
    assert place == tmp_path / "new" / "report.html"
    assert "Ünïcode" in place.read_text(encoding="utf-8")
    assert list(place.parent.iterdir()) == [place]
    write_report(place, page("Another"))
    assert "<title>Another</title>" in place.read_text(encoding="utf-8")


def test_what_no_page_can_show_is_replaced():
    assert escape("a\x00b\ud800c\uffff") == "a\ufffdb\ufffdc\ufffd"
    assert escape("a\tb\n") == "a\tb\n"
