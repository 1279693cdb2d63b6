# SPDX-License-Identifier: Apache-2.0
"""Private synthetic data: images and tables that can be shared, and their evaluation."""
