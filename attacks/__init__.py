# SPDX-License-Identifier: Apache-2.0
"""Attacks on the claims of the whole library. Tests and `make audit` run them; they are not installed."""
