# SPDX-License-Identifier: Apache-2.0
"""Learning from columns that different parties hold about the same people: a network in parts."""
