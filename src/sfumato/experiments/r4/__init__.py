# SPDX-License-Identifier: Apache-2.0
"""Report R4. Private GANs and PATE. One module for each table or figure."""
