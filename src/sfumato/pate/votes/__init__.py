# SPDX-License-Identifier: Apache-2.0
"""How votes become answers, and what that costs."""
