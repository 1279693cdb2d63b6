# SPDX-License-Identifier: Apache-2.0
"""Models that learn from answers about public rows."""
