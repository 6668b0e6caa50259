"""Sources on the web: folders of files, and archives."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pesky.files import atomic_path
from pesky.lab.datasets import DataFile, file_state
from pesky.lab.fetching.archives import opened_tar
from pesky.lab.fetching.delivery import Source, SourceError, Watch, install
from pesky.lab.fetching.download import download, host_of

__all__ = ["archive_source", "folder_source"]


def folder_source(url: str) -> Source:
    """Return a folder that holds the files by name."""

    def deliver(folder: Path, wanted: Sequence[DataFile], watch: Watch) -> None:
        for file in wanted:
            _fetch_file(f"{url}/{Path(file.path).name}", folder / file.path, file, watch)

    return Source(host_of(url), deliver)


def _fetch_file(url: str, path: Path, file: DataFile, watch: Watch) -> None:
    part = _part_of(path)
    resumed = part.exists()
    download(url, part, watch, file.size)
    if file_state(part, file) == "ok":
        with atomic_path(path) as temporary:  # may be a link to another disk
            shutil.copyfile(part, temporary)
        part.unlink()
        return
    part.unlink()
    if not resumed:
        raise SourceError(f"its {path.name} is not the published one")
    _fetch_file(url, path, file, watch)  # what was there before may have been at fault


def archive_source(url: str) -> Source:
    """Return an archive that holds the files somewhere."""

    def deliver(folder: Path, wanted: Sequence[DataFile], watch: Watch) -> None:
        part = _part_of((folder / wanted[0].path).with_name(Path(urlsplit(url).path).name))
        resumed = part.exists()
        download(url, part, watch)
        watch.begin(f"unpacking {Path(urlsplit(url).path).name}")
        try:
            _unpack(part, folder, wanted)
        except SourceError:
            part.unlink()
            if not resumed:
                raise
            deliver(folder, wanted, watch)
        else:
            part.unlink()

    return Source(host_of(url), deliver)


def _unpack(archive: Path, folder: Path, wanted: Sequence[DataFile]) -> None:
    with opened_tar(archive) as members:
        for file in wanted:
            install(folder, file, members(Path(file.path).name))


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
