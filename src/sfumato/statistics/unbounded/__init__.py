# SPDX-License-Identifier: Apache-2.0
"""Statistics of columns without known bounds."""
