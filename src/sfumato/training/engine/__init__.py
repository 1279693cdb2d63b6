# SPDX-License-Identifier: Apache-2.0
"""Clipped sums of per-unit gradients: three engines, and the self-check that compares them."""
