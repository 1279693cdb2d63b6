# SPDX-License-Identifier: Apache-2.0
"""Statistics of columns: counts, means, quantiles, histograms, covariance."""
