# SPDX-License-Identifier: Apache-2.0
"""Private estimators with the API of scikit-learn."""

from sfumato.estimators.ada_ssp import AdaSSP
from sfumato.estimators.advice import Advice, advise
from sfumato.estimators.base import PrivateEstimator
from sfumato.estimators.checks import expected_failed_checks
from sfumato.estimators.k_means import KMeans
from sfumato.estimators.logistic import LogisticRegression
from sfumato.estimators.naive_bayes import GaussianNB
from sfumato.estimators.noisy_stats import NoisyStats
from sfumato.estimators.preprocessing import PCA, StandardScaler
from sfumato.estimators.pricing import cost
from sfumato.estimators.row_steps import Binarizer, Normalizer
from sfumato.estimators.search import Search
from sfumato.estimators.theil_sen import TheilSen
from sfumato.estimators.trees.boosting import HistGradientBoostingClassifier
from sfumato.estimators.trees.forest import DecisionTreeClassifier, RandomForestClassifier
from sfumato.estimators.tukey_em import TukeyEM

__all__ = [
    "PCA",
    "AdaSSP",
    "Advice",
    "Binarizer",
    "DecisionTreeClassifier",
    "GaussianNB",
    "HistGradientBoostingClassifier",
    "KMeans",
    "LogisticRegression",
    "NoisyStats",
    "Normalizer",
    "PrivateEstimator",
    "RandomForestClassifier",
    "Search",
    "StandardScaler",
    "TheilSen",
    "TukeyEM",
    "advise",
    "cost",
    "expected_failed_checks",
]
