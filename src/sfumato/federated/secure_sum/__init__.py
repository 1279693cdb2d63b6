# SPDX-License-Identifier: Apache-2.0
"""Sums that the server sees only as a whole, with integer noise that the clients add themselves."""
