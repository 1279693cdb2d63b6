# SPDX-License-Identifier: Apache-2.0
"""Names of the library in guides become links to the reference; nothing else does."""

from docs.reference_links import linked, targets

KNOWN = {
    "sf.train": "sfumato.training.train",
    "Clipping": "sfumato.training.Clipping",
    "sfumato.audit": "reference/audit.md",
}


def test_the_first_mention_of_a_name_is_a_link():
    text = "`sf.train(model)` takes `Clipping`; `Clipping` has a norm; `other`."
    assert linked(text, KNOWN) == (
        "[`sf.train(model)`][sfumato.training.train] takes [`Clipping`][sfumato.training.Clipping]; "
        "`Clipping` has a norm; `other`."
    )


def test_a_room_is_a_link_to_its_page():
    assert linked("`sfumato.audit`", KNOWN, "../") == "[`sfumato.audit`](../reference/audit.md)"


def test_blocks_headings_and_links_stay_as_they_are():
    text = (
        "# On `Clipping`\n\n[`Clipping` of rows](a.md), [`sf.train`][there]\n\n```python\n`sf.train`\n```\n"
    )
    assert linked(text, KNOWN) == text


def test_names_are_those_of_the_reference():
    known = targets()
    assert known["sf.train"] == known["sfumato.training.train"] == "sfumato.training.train"
    assert known["PoissonSampling"] == "sfumato.training.PoissonSampling"
    assert known["sf.open"] == "sfumato.open" and known["sfumato.audit"] == "reference/audit.md"
    assert "train" not in known  # a word, too
