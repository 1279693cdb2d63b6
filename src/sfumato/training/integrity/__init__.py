# SPDX-License-Identifier: Apache-2.0
"""Checks that only noised values leave with a model: the release barrier, comparison of states, rollback."""
