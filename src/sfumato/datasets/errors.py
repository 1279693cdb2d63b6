# SPDX-License-Identifier: Apache-2.0
"""What can go wrong on the way to a data set: it is nowhere to be found, or it is not what it should be."""

from sfumato.errors import SfumatoError

__all__ = ["DataCorruptError", "DataNotFoundError"]


class DataNotFoundError(SfumatoError, FileNotFoundError):
    """A file of a data set was found in none of the places, and could not be downloaded."""


class DataCorruptError(SfumatoError, ValueError):
    """A file of a data set does not have its published checksum; it was not used."""
