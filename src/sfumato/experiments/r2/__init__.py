# SPDX-License-Identifier: Apache-2.0
"""Report R2. Composition, regression, statistics. One module for each table or figure."""
