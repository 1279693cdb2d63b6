# SPDX-License-Identifier: Apache-2.0
"""What clients hold, and how they learn from it."""
