# SPDX-License-Identifier: Apache-2.0
"""Run a model on a whole batch while it sees one row at a time."""
