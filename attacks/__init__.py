# SPDX-License-Identifier: Apache-2.0
"""Attacks on the claims of the whole library: run by tests and `make audit`, not installed."""
