# SPDX-License-Identifier: Apache-2.0
"""Distributions over coded tables: junction trees, belief propagation, estimation and sampling."""
