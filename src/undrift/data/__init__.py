"""Data sets, how they are split over clients, and what the server has of its own."""

from undrift.data.augment import flip_crop
from undrift.data.dataset import DataSet
from undrift.data.layout import rows
from undrift.data.loading import NAMES, data_root, load
from undrift.data.partition import SCHEMES, load_indices, partition
from undrift.data.server import SOURCES, load_server_file, server_indices
from undrift.data.skew import label_counts

__all__ = [
    "NAMES",
    "SCHEMES",
    "SOURCES",
    "DataSet",
    "data_root",
    "flip_crop",
    "label_counts",
    "load",
    "load_indices",
    "load_server_file",
    "partition",
    "rows",
    "server_indices",
]
