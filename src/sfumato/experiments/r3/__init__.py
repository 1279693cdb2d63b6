# SPDX-License-Identifier: Apache-2.0
"""Report R3. Federations with differential privacy. One module for each table or figure."""
