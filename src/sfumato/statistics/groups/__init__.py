# SPDX-License-Identifier: Apache-2.0
"""Statistics of groups of rows, for public keys and for unknown keys."""
