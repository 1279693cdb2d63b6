# SPDX-License-Identifier: Apache-2.0
"""A project: a folder with a ledger, a settings file that commands read, and a first script."""
