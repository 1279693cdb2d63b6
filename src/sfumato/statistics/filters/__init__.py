# SPDX-License-Identifier: Apache-2.0
"""Filters and new columns: expressions of one row that cannot fail."""
