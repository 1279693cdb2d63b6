# SPDX-License-Identifier: Apache-2.0
"""Nearest points in the hull and the span of label gradients."""
