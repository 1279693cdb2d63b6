# SPDX-License-Identifier: Apache-2.0
"""Private columns, in memory and in a query engine."""
