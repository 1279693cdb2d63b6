# SPDX-License-Identifier: Apache-2.0
"""Audits of federated runs: what somebody learns who sees the models, and what the server learns."""
