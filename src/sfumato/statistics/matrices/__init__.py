# SPDX-License-Identifier: Apache-2.0
"""Statistics of several columns at once: covariance, correlation, principal components."""
