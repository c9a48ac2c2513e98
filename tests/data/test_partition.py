"""What every partition must satisfy, over many parameters, and requests that cannot be met."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from undrift.data import label_counts, load_indices, partition
from undrift.errors import ConfigError, DataError

Ints = NDArray[np.int64]


def shuffled_labels(per_class: list[int], seed: int = 0) -> Ints:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(per_class)), per_class))


def check_disjoint(parts: list[Ints], n: int, complete: bool = True) -> None:
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == len(together)
    assert together.min() >= 0
    assert together.max() < n
    assert all(len(own) and own.dtype == np.int64 and (np.diff(own) > 0).all() for own in parts)
    if complete:
        assert len(together) == n


EVEN = shuffled_labels([500] * 10)


@pytest.mark.parametrize("clients", [1, 3, 10, 45, 100, 333])
@pytest.mark.parametrize("C", [1, 2, 3, 5, 7, 10])
def test_classes_are_exact(clients: int, C: int) -> None:
    parts = partition("classes", EVEN, clients, 1, classes=C)
    counts = label_counts(EVEN, parts, 10)
    check_disjoint(parts, len(EVEN), complete=False)
    assert len(parts) == clients
    assert ((counts > 0).sum(1) == C).all()
    per_class = (counts > 0).sum(0)
    assert per_class.max() - per_class.min() <= 1
    assert len(np.unique(counts[counts > 0])) == 1  # the same number m everywhere
    m = counts.max()
    # m is the largest that fits: within n/N, and no class is asked for more than its 500.
    assert m == min(5000 // clients // C, 500 // per_class.max())


def test_classes_as_in_the_papers() -> None:
    cifar = np.tile(np.arange(10), 5000)
    parts = partition("classes", cifar, 1000, 0, classes=2)
    counts = label_counts(cifar, parts, 10)
    assert {len(own) for own in parts} == {50}
    assert (counts.sum(0) == 5000).all()
    assert set(counts.ravel().tolist()) == {0, 25}
    assert len(np.unique(counts > 0, axis=0)) == 45  # all pairs of classes occur
    emnist = np.tile(np.arange(45), 240)
    for C in (1, 2, 5):
        assert {len(own) for own in partition("classes", emnist, 45, 0, classes=C)} == {240}


def test_classes_of_unequal_sizes_follow_the_smallest() -> None:
    labels = shuffled_labels([100, 60, 80])
    counts = label_counts(labels, partition("classes", labels, 6, 0, classes=2), 3)
    assert sorted(np.unique(counts).tolist()) == [0, 15]  # 4 clients a class, 60 // 4
    spare = label_counts(labels, partition("classes", labels, 4, 0, classes=1), 3)
    assert (spare > 0).sum(0).tolist() == [2, 1, 1]  # the odd client goes to the largest class


def test_class_pairs_are_drawn_evenly() -> None:
    # Each of the 45 pairs is expected 10000/45 = 222 times, with a deviation of about 15.
    labels = np.tile(np.arange(10), 2000)
    counts = label_counts(labels, partition("classes", labels, 10_000, 5, classes=2), 10)
    _, times = np.unique(counts > 0, axis=0, return_counts=True)
    assert len(times) == 45
    assert times.min() > 140
    assert times.max() < 310


def test_labels_need_not_be_dense() -> None:
    labels = np.repeat([3, 7, 40], 20)
    parts = partition("classes", labels, 3, 0, classes=2)
    assert all(len(set(labels[own].tolist())) == 2 for own in parts)


@pytest.mark.parametrize(("clients", "s"), [(1, 1), (10, 2), (7, 3), (100, 2), (13, 4), (500, 10)])
def test_shards_are_whole_blocks_of_the_sorted_data(clients: int, s: int) -> None:
    labels = EVEN[:4999] if clients == 7 else EVEN
    n = len(labels)
    parts = partition("shards", labels, clients, 2, shards=s)
    check_disjoint(parts, n)
    place = np.empty(n, np.int64)
    place[np.argsort(labels, kind="stable")] = np.arange(n)
    cuts = [round(i * n / (clients * s)) for i in range(clients * s + 1)]
    block = np.repeat(np.arange(clients * s), np.diff(cuts))[place]
    owned = [set(block[own].tolist()) for own in parts]
    assert all(len(blocks) == s for blocks in owned)
    assert sum(len(b) for b in owned) == len(set().union(*owned))


@pytest.mark.parametrize(("clients", "alpha"), [(1, 0.1), (5, 0.1), (10, 0.5), (20, 1.0), (10, 100.0)])
def test_dirichlet_gives_everything_away(clients: int, alpha: float) -> None:
    for seed in range(5):
        parts = partition("dirichlet", EVEN, clients, seed, alpha=alpha)
        check_disjoint(parts, len(EVEN))
        assert len(parts) == clients
        assert min(len(own) for own in parts) >= 10


def test_dirichlet_has_the_moments_of_its_name() -> None:
    # A share of Dir(alpha) over N has mean 1/N and variance (1/N)(1-1/N)/(N*alpha + 1).
    for alpha, N in ((0.5, 4), (5.0, 4)):
        shares = np.concatenate(
            [label_counts(EVEN, partition("dirichlet", EVEN, N, s, alpha=alpha), 10).ravel() / 500 for s in range(200)]
        )
        want = (1 / N) * (1 - 1 / N) / (N * alpha + 1)
        assert abs(shares.mean() - 1 / N) < 1e-9
        assert abs(shares.var() / want - 1) < 0.1


def test_dirichlet_redraws_until_all_have_enough() -> None:
    sizes = [
        min(len(own) for own in partition("dirichlet", EVEN, 10, s, alpha=0.1, min_samples=least))
        for s in range(10)
        for least in (150,)
    ]
    assert min(sizes) >= 150
    assert (
        min(len(own) for s in range(10) for own in partition("dirichlet", EVEN, 10, s, alpha=0.1, min_samples=1)) < 150
    )  # so the demand above was met by redrawing, not by luck


@pytest.mark.parametrize("r", [0.0, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("clients", [1, 10, 100])
def test_ratio_mixes_blocks_with_a_uniform_share(clients: int, r: float) -> None:
    parts = partition("ratio", EVEN, clients, 3, ratio=r)
    check_disjoint(parts, len(EVEN))
    sizes = [len(own) for own in parts]
    assert max(sizes) - min(sizes) <= 2
    if clients == 10:
        # Client k holds block k of the sorted share: r*500 of class k, up to the draw's scatter
        # (about 20), and a tenth of the uniform share: (1-r)*50 of each class.
        counts = label_counts(EVEN, parts, 10)
        own = counts[np.arange(10), np.arange(10)]
        assert (np.abs(own - (r * 500 + (1 - r) * 50)) <= 80).all()
        assert abs((counts.sum() - own.sum()) - (1 - r) * 4500) < 300


def test_ratio_one_is_sorted_blocks() -> None:
    labels = np.array([1, 0, 2, 0, 1, 2])
    assert [own.tolist() for own in partition("ratio", labels, 3, 0, ratio=1.0)] == [[1, 3], [0, 4], [2, 5]]


@pytest.mark.parametrize("clients", [1, 3, 7, 5000])
def test_iid_parts_are_equally_large(clients: int) -> None:
    parts = partition("iid", EVEN, clients, 0)
    check_disjoint(parts, len(EVEN))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if clients == 7:
        assert abs(label_counts(EVEN, parts, 10) - 71.4).max() < 40


SCHEMES: list[tuple[str, dict[str, Any]]] = [
    ("iid", {}),
    ("classes", {"classes": 2}),
    ("shards", {"shards": 2}),
    ("dirichlet", {"alpha": 0.5}),
    ("ratio", {"ratio": 0.5}),
]


@pytest.mark.parametrize(("scheme", "options"), SCHEMES)
def test_the_seed_decides(scheme: str, options: dict[str, Any]) -> None:
    np.random.seed(0)
    a = partition(scheme, EVEN, 10, 4, **options)
    np.random.seed(1)
    b = partition(scheme, EVEN, 10, 4, **options)
    c = partition(scheme, EVEN, 10, 5, **options)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(a, c, strict=True))


@pytest.mark.parametrize(("scheme", "options"), SCHEMES)
def test_a_hundred_thousand_clients_take_seconds(scheme: str, options: dict[str, Any]) -> None:
    labels = np.tile(np.arange(10), 100_000)
    start = time.perf_counter()
    parts = partition(
        scheme,
        labels,
        100_000,
        0,
        min_samples=0,
        **(options | ({"alpha": 10.0} if "alpha" in options else {})),
    )
    assert time.perf_counter() - start < 20
    assert len(parts) == 100_000


def test_given_ids_become_dense_in_sorted_order() -> None:
    parts = partition("given", np.zeros(6), None, 0, given=np.array([30, 7, 30, 7, 9, 7]))
    assert [own.tolist() for own in parts] == [[1, 3, 5], [4], [0, 2]]
    named = partition("given", np.zeros(3), 2, 0, given=np.array(["b", "a", "b"]))
    assert [own.tolist() for own in named] == [[1], [0, 2]]


def test_given_lists_keep_their_clients(tmp_path: Path) -> None:
    path = tmp_path / "indices.json"
    path.write_text(json.dumps([[4, 0], [2]]))
    parts = partition("given", np.zeros(5), 2, 0, given=load_indices(path))
    assert [own.tolist() for own in parts] == [[0, 4], [2]]
    assert parts[0].dtype == np.int64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1, 2", "damaged"),
        ('{"a": 1}', "must hold a list"),
        ("[[1], 2]", "client 1 is not a list"),
        ("[[1.5]]", "client 0 is not a list of whole numbers"),
        ("[[true]]", "client 0 is not a list of whole numbers"),
    ],
)
def test_wrong_index_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "indices.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"indices\.json: .*{message}"):
        load_indices(path)


def test_absent_index_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.json: no such file"):
        load_indices(tmp_path / "absent.json")
    with pytest.raises(DataError, match="a folder"):
        load_indices(tmp_path)


TEN = np.arange(100) % 10


@pytest.mark.parametrize(
    ("scheme", "clients", "options", "message"),
    [
        ("classes", 10, {"classes": 20}, r"partition\.classes = 20: the data have 10 classes"),
        ("classes", 10, {"classes": 0}, r"partition\.classes = 0"),
        ("classes", 60, {"classes": 2}, r"partition\.classes = 2 with partition\.clients = 60: 100 samples"),
        ("iid", 101, {}, r"partition\.clients = 101: more than the 100 samples"),
        ("iid", 0, {}, r"partition\.clients = 0"),
        ("iid", None, {}, r"partition\.clients = None"),
        ("shards", 60, {"shards": 2}, r"partition\.shards = 2 with partition\.clients = 60: 120 blocks"),
        ("shards", 6, {"shards": -1}, r"partition\.shards = -1"),
        (
            "dirichlet",
            20,
            {"alpha": 0.5},
            r"partition\.min_samples = 10 with partition\.clients = 20: needs 200",
        ),
        (
            "dirichlet",
            10,
            {"alpha": 0.5},
            r"partition\.alpha = 0\.5 with partition\.clients = 10: .*min_samples",
        ),
        ("dirichlet", 5, {"alpha": 0.0}, r"partition\.alpha = 0\.0"),
        ("dirichlet", 5, {"alpha": float("inf")}, r"partition\.alpha = inf"),
        ("ratio", 5, {"ratio": 1.5}, r"partition\.ratio = 1\.5"),
        ("ratio", 5, {"ratio": float("nan")}, r"partition\.ratio = nan"),
        ("ratio", 100, {"ratio": 0.3}, r"partition\.clients = 100: client \d+ would have no samples"),
        ("given", 3, {"given": [[0], [1]]}, r"partition\.clients = 3: the given partition has 2"),
        ("given", None, {"given": [[0], [100]]}, "client 1 has index 100, allowed: 0 … 99"),
        ("given", None, {"given": [[0], [-1]]}, "client 1 has index -1"),
        ("given", None, {"given": [[0, 5], [5]]}, r"index 5 is given twice \(clients 0 and 1\)"),
        ("given", None, {"given": [[0, 0]]}, r"index 0 is given twice \(clients 0 and 0\)"),
        ("given", None, {"given": [[0], []]}, "client 1 has no samples"),
        ("given", None, {"given": []}, "client 0 has no samples"),
        ("given", None, {"given": [[0.5]]}, "whole numbers"),
        ("given", None, {"given": [[10**30]]}, "whole numbers"),
        ("given", None, {"given": np.zeros(99, int)}, "the data have 100 samples"),
    ],
)
def test_impossible_partitions(scheme: str, clients: int | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        partition(scheme, TEN, clients, 0, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "seed", "message"),
    [
        ("class", 0, r"partition\.scheme = 'class' is unknown; did you mean 'classes'\?"),
        ("classes", 0, r"partition\.classes is missing"),
        ("shards", 0, r"partition\.shards is missing"),
        ("dirichlet", 0, r"partition\.alpha is missing"),
        ("ratio", 0, r"partition\.ratio is missing"),
        ("given", 0, r"partition\.file"),
        ("iid", -1, r"partition\.seed = -1"),
    ],
)
def test_wrong_configuration(scheme: str, seed: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        partition(scheme, TEN, 10, seed)


def test_label_counts_by_hand() -> None:
    labels = np.array([0, 1, 1, 2, 0])
    assert label_counts(labels, [np.array([0, 1, 2]), np.array([4])], 4).tolist() == [
        [1, 2, 0, 0],
        [1, 0, 0, 0],
    ]
