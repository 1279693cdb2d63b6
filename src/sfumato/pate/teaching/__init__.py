# SPDX-License-Identifier: Apache-2.0
"""How one teacher is trained, kept and asked, so that nothing about it is visible from outside."""
