# SPDX-License-Identifier: Apache-2.0
"""Privacy cards: one page that says what a release promises, for those who use it."""
