# SPDX-License-Identifier: Apache-2.0
"""Attacks on one mechanism, and checks of how it is paid for."""
