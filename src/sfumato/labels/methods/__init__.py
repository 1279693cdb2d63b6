# SPDX-License-Identifier: Apache-2.0
"""The methods of label privacy."""
