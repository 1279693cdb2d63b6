# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.cli.aggregator_flags import aggregator_of
from sfumato.cli.pate_settings import PateSettings
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import ConfidentGNMax, GNMax, LNMax

PLAIN = (GNMax(stddev=10.0), None)
SURE = (ConfidentGNMax(threshold=90.0, threshold_stddev=50.0, stddev=12.0), (0.9, 1.0))


def made(usual=PLAIN, **flags):
    return aggregator_of(PateSettings(**flags), usual, teachers=100)


def test_without_a_flag_the_recipe_decides():
    assert made() == PLAIN and made(SURE) == SURE


def test_published_noise_is_used_for_another_aggregator():
    assert made(aggregator="lnmax") == (LNMax(scale=8.0), None)
    assert made(SURE, aggregator="gnmax") == (GNMax(stddev=16.0), None)
    assert made(aggregator="confident")[0] == ConfidentGNMax(
        threshold=80.0, threshold_stddev=60.0, stddev=16.0
    )


def test_flags_change_noise_and_threshold():
    assert made(noise=3.0) == (GNMax(stddev=3.0), None)
    assert made(aggregator="lnmax", noise=3.0) == (LNMax(scale=3.0), None)
    found = made(SURE, noise=1.0, threshold=2.0, threshold_noise=3.0)
    assert found == (ConfidentGNMax(threshold=2.0, threshold_stddev=3.0, stddev=1.0), None)


def test_agreement_of_a_flag_goes_before_that_of_the_recipe():
    assert made(SURE, agreement=[0.8]) == (SURE[0], [0.8])
    assert made(agreement=[0.8]) == (PLAIN[0], [0.8])


@pytest.mark.parametrize(
    "flags, said",
    [
        ({"aggregator": "magic"}, "unknown --aggregator 'magic'"),
        ({"threshold": 3.0}, "for --aggregator confident"),
        ({"threshold_noise": 3.0, "aggregator": "lnmax"}, "for --aggregator confident"),
        ({"noise": 0.0}, "noise must be"),
        ({"threshold_noise": -1.0, "aggregator": "confident"}, "threshold_noise must be"),
    ],
)
def test_what_does_not_fit_is_refused(flags, said):
    with pytest.raises(InvalidParameterError, match=said):
        made(**flags)
