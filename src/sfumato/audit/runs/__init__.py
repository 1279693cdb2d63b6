# SPDX-License-Identifier: Apache-2.0
"""Audits of training runs: canaries, trial steps, and tests of noise, clipping, batches and updates."""
