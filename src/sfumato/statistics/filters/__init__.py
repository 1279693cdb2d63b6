# SPDX-License-Identifier: Apache-2.0
"""Filters and new columns of private tables: which expressions are allowed, and how they are made total."""
