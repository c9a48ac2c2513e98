"""The data sets that can be fetched: where they are published, and how to know that they are whole.

Checksums are the published md5 sums: they guard against damage, and downloads come from whoever
published the set (or, for MNIST, whose own site stopped serving it, from the usual mirror first).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """A file to fetch from the first of `urls` that answers; `size` in bytes where it is known."""

    file: str
    urls: tuple[str, ...]
    md5: str
    size: int | None = None


@dataclass(frozen=True)
class Content:
    """A file of a laid out set: md5 and size of what it holds, after gunzip, where they are known."""

    file: str
    md5: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Entry:
    """A data set: its folder, the downloads that fill it and the files that belong there."""

    title: str
    folder: str
    downloads: tuple[Download, ...]
    contents: tuple[Content, ...]

    @property
    def archive(self) -> bool:
        """Whether the download is an archive to unpack, rather than the files themselves."""
        return not self.downloads[0].file.endswith("-ubyte.gz")


def _idx_sets(
    mirrors: tuple[str, ...], sums: dict[str, tuple[str, str, int]]
) -> tuple[tuple[Download, ...], tuple[Content, ...]]:
    """Downloads and contents of gzipped idx files: md5 packed, md5 and size unpacked."""
    downloads = (
        Download(f"{file}.gz", tuple(f"{url}{file}.gz" for url in mirrors), packed)
        for file, (packed, _, _) in sums.items()
    )
    contents = (Content(f"{file}.gz", md5, size) for file, (_, md5, size) in sums.items())
    return tuple(downloads), tuple(contents)


EMNIST_SPLITS = ("balanced", "byclass", "bymerge", "letters", "digits", "mnist")


def emnist_files(split: str) -> tuple[str, ...]:
    """The four files of one split of EMNIST."""
    return tuple(
        f"emnist-{split}-{part}-{what}-ubyte.gz"
        for part in ("train", "test")
        for what in ("images-idx3", "labels-idx1")
    )


CATALOGUE: dict[str, Entry] = {
    "mnist": Entry(
        "MNIST: handwritten digits, 60,000 + 10,000 images 28x28, 10 classes",
        "mnist",
        *_idx_sets(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            {
                "train-images-idx3-ubyte": (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "6bbc9ace898e44ae57da46a324031adb",
                    47_040_016,
                ),
                "train-labels-idx1-ubyte": (
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "a25bea736e30d166cdddb491f175f624",
                    60_008,
                ),
                "t10k-images-idx3-ubyte": (
                    "9fb629c4189551a2d022fa330f9573f3",
                    "2646ac647ad5339dbf082846283269ea",
                    7_840_016,
                ),
                "t10k-labels-idx1-ubyte": (
                    "ec29112dd5afa0611ce80d1b7f02629c",
                    "27ae3e4e09519cfbb04c329615203637",
                    10_008,
                ),
            },
        ),
    ),
    "fashion-mnist": Entry(
        "Fashion-MNIST: clothes, 60,000 + 10,000 images 28x28, 10 classes",
        "fashion-mnist",
        *_idx_sets(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            {
                "train-images-idx3-ubyte": (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                    47_040_016,
                ),
                "train-labels-idx1-ubyte": (
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "9018921c3c673c538a1fc5bad174d6f9",
                    60_008,
                ),
                "t10k-images-idx3-ubyte": (
                    "bef4ecab320f06d8554ea6380940ec79",
                    "8181f5470baa50b63fa0f6fddb340f0a",
                    7_840_016,
                ),
                "t10k-labels-idx1-ubyte": (
                    "bb300cfdad3c16e7a12a480ee83cd310",
                    "15d484375f8d13e6eb1aabb0c3f46965",
                    10_008,
                ),
            },
        ),
    ),
    "emnist": Entry(
        "EMNIST: handwritten characters 28x28, six splits of 10 to 62 classes",
        "emnist",
        (
            Download(
                "emnist-gzip.zip",
                ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                "58c8d27c78d21e728a6bc7b3cc06412e",
            ),
        ),
        tuple(Content(file) for split in EMNIST_SPLITS for file in emnist_files(split)),
    ),
    "cifar10": Entry(
        "CIFAR-10: 50,000 + 10,000 colour images 32x32, 10 classes",
        "cifar-10-batches-bin",
        (
            Download(
                "cifar-10-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        (
            Content("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25", 30_730_000),
            Content("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692", 30_730_000),
            Content("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421", 30_730_000),
            Content("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb", 30_730_000),
            Content("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d", 30_730_000),
            Content("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d", 30_730_000),
        ),
    ),
    "cifar100": Entry(
        "CIFAR-100: 50,000 + 10,000 colour images 32x32, 100 classes",
        "cifar-100-binary",
        (
            Download(
                "cifar-100-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                "03b5dce01913d631647c71ecec9e9cb8",
                168_513_733,
            ),
        ),
        (Content("train.bin", size=153_700_000), Content("test.bin", size=30_740_000)),
    ),
    "stl10": Entry(
        "STL-10: 5,000 + 8,000 labelled colour images 96x96, 10 classes (a download of 2.6 GB)",
        "stl10_binary",
        (
            Download(
                "stl10_binary.tar.gz",
                ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
                "91f7769df0f17e558f3565bffb0c7dfb",
            ),
        ),
        (
            Content("train_X.bin", "918c2871b30a85fa023e0c44e0bee87f", 138_240_000),
            Content("train_y.bin", "5a34089d4802c674881badbb80307741", 5_000),
            Content("test_X.bin", "7f263ba9f9e0b06b93213547f721ac82", 221_184_000),
            Content("test_y.bin", "36f9794fa4beb8a2c72628de14fa638e", 8_000),
        ),
    ),
}
"""What `undrift data get` can fetch, by name."""
