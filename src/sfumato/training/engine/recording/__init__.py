# SPDX-License-Identifier: Apache-2.0
"""Passes that are recorded: which way is the fastest, and the pieces of a step that were replayed."""
