# SPDX-License-Identifier: Apache-2.0
"""Attacks on a finished model: membership, memorization, inversion, attributes."""
