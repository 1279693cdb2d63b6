# SPDX-License-Identifier: Apache-2.0
"""Errors of data sets: a file was not found, or does not have its checksum."""

from sfumato.errors import SfumatoError

__all__ = ["DataCorruptError", "DataNotFoundError"]


class DataNotFoundError(SfumatoError, FileNotFoundError):
    """A file of a data set was found in none of the places, and could not be downloaded."""


class DataCorruptError(SfumatoError, ValueError):
    """A file of a data set does not have its published checksum; it was not used."""
