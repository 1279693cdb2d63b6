# SPDX-License-Identifier: Apache-2.0
"""Statistics of one column: counts, means, quantiles, histograms."""
