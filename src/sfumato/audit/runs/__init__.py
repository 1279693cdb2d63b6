# SPDX-License-Identifier: Apache-2.0
"""Audits of training runs: canaries, the logs of a run, and attacks on what it released."""
