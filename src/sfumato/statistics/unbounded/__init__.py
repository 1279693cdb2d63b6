# SPDX-License-Identifier: Apache-2.0
"""Statistics of columns whose bounds are unknown or loose."""
