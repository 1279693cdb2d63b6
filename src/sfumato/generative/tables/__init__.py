# SPDX-License-Identifier: Apache-2.0
"""Synthetic tables: noisy marginals, chosen one after another, and a distribution that fits them."""
