# SPDX-License-Identifier: Apache-2.0
"""From scores and counts to lower bounds on epsilon."""
