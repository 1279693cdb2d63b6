# SPDX-License-Identifier: Apache-2.0
"""Private statistics of arrays, files, databases and clusters."""

from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import column_of, rows_of
from sfumato.statistics.matrices.covariance import Correlation, Covariance, correlation, covariance
from sfumato.statistics.matrices.principal_components import (
    Components,
    PrincipalComponents,
    principal_components,
)
from sfumato.statistics.query import Answer, Query, Question, cost
from sfumato.statistics.questions.clipped_values import ClippedShare, clipped_share
from sfumato.statistics.questions.counts import Count, Sum, count, sum
from sfumato.statistics.questions.histograms import BinCounts, CategoryCounts, Histogram, histogram
from sfumato.statistics.questions.many_quantiles import Quantiles, quantiles
from sfumato.statistics.questions.means import Mean, mean
from sfumato.statistics.questions.quantiles import Quantile, median, quantile
from sfumato.statistics.questions.stable_histograms import StableCounts, stable_histogram
from sfumato.statistics.questions.thresholds import FirstAbove, Found, first_above
from sfumato.statistics.questions.top_k import TopK, top_k
from sfumato.statistics.questions.variances import StandardDeviation, Variance, standard_deviation, variance
from sfumato.statistics.release import Covers, Interval, Parts, Release
from sfumato.statistics.sources.private_tables import PrivateTable
from sfumato.statistics.sources.tables import private_table
from sfumato.statistics.unbounded.bounds import AutomaticBounds, bounds
from sfumato.statistics.unbounded.coinpress_covariance import CoinPressCovariance, coinpress_covariance
from sfumato.statistics.unbounded.coinpress_mean import CoinPressMean, coinpress_mean
from sfumato.statistics.unbounded.coinpress_means import CoinPressMeans, coinpress_means
from sfumato.statistics.unbounded.karwa_vadhan import KarwaVadhanMean, karwa_vadhan_mean

__all__ = [
    "Answer",
    "AutomaticBounds",
    "BinCounts",
    "CategoryCounts",
    "ClippedShare",
    "CoinPressCovariance",
    "CoinPressMean",
    "CoinPressMeans",
    "Components",
    "Correlation",
    "Count",
    "Covariance",
    "Covers",
    "FirstAbove",
    "Found",
    "Histogram",
    "Interval",
    "KarwaVadhanMean",
    "Mean",
    "Parts",
    "PrincipalComponents",
    "PrivateTable",
    "Quantile",
    "Quantiles",
    "Query",
    "Question",
    "Release",
    "StableCounts",
    "StandardDeviation",
    "Sum",
    "TopK",
    "Variance",
    "bounds",
    "categories_of",
    "clipped_share",
    "coinpress_covariance",
    "coinpress_mean",
    "coinpress_means",
    "column_of",
    "correlation",
    "cost",
    "count",
    "covariance",
    "first_above",
    "histogram",
    "karwa_vadhan_mean",
    "mean",
    "median",
    "principal_components",
    "private_table",
    "quantile",
    "quantiles",
    "rows_of",
    "stable_histogram",
    "standard_deviation",
    "sum",
    "top_k",
    "variance",
]
