# SPDX-License-Identifier: Apache-2.0
"""Synthetic data with a privacy guarantee."""
