# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

import pytest

from sfumato import estimators
from sfumato.errors import InvalidParameterError
from sfumato.estimators import advice, advise
from sfumato.estimators.classes import PublicClassifier

ADULT = {"public_size": 32_561, "features": 13}


def test_every_classifier_is_ranked_and_the_best_comes_first():
    names = {
        name
        for name in estimators.__all__
        if isinstance(kind := getattr(estimators, name), type)
        and issubclass(kind, PublicClassifier | estimators.LogisticRegression)
    }
    ranked = advise(epsilon=1.0, delta=1e-5, **ADULT)
    assert {one.estimator for one in ranked} == names == set(advice.CLASSIFIERS)
    shares = [one.share for one in ranked]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_more_rows_a_larger_epsilon_and_fewer_features_never_lower_a_share(delta):
    def shares(**terms):
        known = {"epsilon": 0.3, "delta": delta, "public_size": 3000, "features": 20, **terms}
        return {one.estimator: one.share for one in advise(**known)}

    usual = shares()
    for better in ({"epsilon": 3.0}, {"public_size": 30_000}, {"features": 5}):
        assert all(shares(**better)[name] >= share for name, share in usual.items())
    assert all(shares(classes=10)[name] <= share for name, share in usual.items())


@pytest.mark.parametrize("curves", [advice._PURE, advice._GAUSSIAN])
def test_curves_are_shares_and_rise(curves):
    for shares in curves.values():
        assert len(shares) == len(advice.GRID) and list(shares) == sorted(shares)
        assert shares[0] >= 0 and shares[-1] <= 1


def test_hardly_any_rows_are_told_to_be_useless():
    for delta in (0.0, 1e-5):
        ranked = advise(epsilon=0.01, delta=delta, public_size=100, features=13)
        assert not any(one.useful for one in ranked)
        assert str(ranked[0]).endswith(": hardly anything")
    best = advise(epsilon=5.0, delta=1e-5, **ADULT)[0]
    assert best.useful and re.fullmatch(r"\w+: \d+% of what can be learned", str(best))


def test_rows_per_noise_is_the_size_over_the_noise_of_one_release_of_all_features():
    gaussian = advice.rows_per_noise("GaussianNB", public_size=1000, features=16, epsilon=1.0, delta=1e-5)
    assert gaussian == pytest.approx(1000 / (3.7306 * 4), rel=1e-4)
    pure = advice.rows_per_noise("GaussianNB", public_size=1000, features=16, epsilon=2.0)
    assert pure == pytest.approx(1000 / (2**0.5 * 8), rel=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": 501.0, "delta": 1e-5},
        {"public_size": 0},
        {"features": 1.5},
        {"classes": 1},
        {"delta": 2.0},
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        advise(**{"epsilon": 1.0, **ADULT, **wrong})


def test_the_page_shows_the_curves():
    page = (Path(__file__).parents[2] / "docs" / "estimators.md").read_text()
    for delta, curves in (("1e-5", advice._GAUSSIAN), ("0", advice._PURE)):
        for name, shares in curves.items():
            row = f"| `{name}` | {delta} | {' | '.join(f'{share:.2f}' for share in shares)} |"
            assert row in page
