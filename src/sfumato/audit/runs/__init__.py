# SPDX-License-Identifier: Apache-2.0
"""Audits of a training run, from within and after it."""
