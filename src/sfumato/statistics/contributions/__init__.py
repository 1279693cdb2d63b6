# SPDX-License-Identifier: Apache-2.0
"""How many rows of one privacy unit count, and which of them."""
