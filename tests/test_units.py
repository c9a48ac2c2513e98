"""The parts below the algorithms, each on its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import undrift.data.federation as federations
from undrift.core.files import read_lines, write_atomic, write_json
from undrift.core.private_memory import PrivateMemory
from undrift.core.schedule import Schedule
from undrift.core.streams import stream, torch_seed
from undrift.core.tree import ALIGNMENT, Packing, clone, flatten, nbytes, unflatten
from undrift.core.vector import FlatModel, merge
from undrift.data.federation import Federation, federation, from_clients
from undrift.data.samples import InMemory
from undrift.errors import ConfigError, DataError, RunError
from undrift.experiment.run_folder import RunFolder
from undrift.rounds.client_states import ClientStates
from undrift.rounds.plan import Plan, batches
from undrift.rounds.progress import rolling, rounds_to, summarise

# Vectors.


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 2, 1),
        nn.GroupNorm(1, 2),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.LayerNorm(5),
        nn.Linear(5, 3),
    )


def test_layout_lists_every_parameter_once() -> None:
    module = network()
    flat = FlatModel(module)
    named = dict(module.named_parameters())
    assert [entry.name for entry in flat.layout.entries] == list(named)
    assert flat.layout.size == sum(p.numel() for p in named.values()) == flat.weights.numel()
    covered = np.zeros(flat.layout.size, dtype=int)
    for entry in flat.layout.entries:
        covered[entry.slice] += 1
    assert (covered == 1).all()
    for name, view in flat.layout.views(flat.weights).items():
        assert torch.equal(view, named[name])
    assert flat.buffers.numel() == 8
    assert [entry.name for entry in flat.buffer_layout.entries] == ["1.running_mean", "1.running_var"]


def test_norm_layers_belong_to_the_layer_before_them() -> None:
    layers = FlatModel(network()).layout.layers
    assert [layer.name for layer in layers] == ["0", "3", "6", "8"]
    sizes = [sum(piece.stop - piece.start for piece in layer.slices) for layer in layers]
    assert sizes == [3 * 4 * 9 + 8, 4 * 2 + 2 + 4, 8 * 5 + 5 + 10, 5 * 3 + 3]


def test_slices_of_layers() -> None:
    layout = FlatModel(network()).layout
    assert layout.slices_of(0) == ()
    assert layout.slices_of(4) == (slice(0, layout.size),)
    assert layout.slices_of(1) == (slice(layout.size - 18, layout.size),)
    assert layout.slices_of(["8"]) == layout.slices_of(1)
    assert layout.slices_of(["8", "6"]) == layout.slices_of(2)
    first, last = layout.slices_of(["0", "8"])
    assert (first.start, first.stop, last.stop) == (0, 116, layout.size)
    for wrong, word in ((5, "layers = 5"), (-1, "layers = -1"), (["9"], "'9'")):
        with pytest.raises(ConfigError, match=word):
            layout.slices_of(wrong)


def test_merge() -> None:
    assert merge(iter([slice(4, 6), slice(0, 2), slice(2, 4), slice(8, 9)])) == (slice(0, 6), slice(8, 9))


def test_parameters_gradients_and_buffers_are_views() -> None:
    """Changing the vector changes the module, backward fills the gradient, training moves the buffers' vector."""
    original = network()
    flat = FlatModel(original)
    x = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    flat.module.train()
    loss = flat.module(x).square().mean()
    gradient = flat.flat(flat.differentiate(loss)).clone()
    original.train()
    original(x).square().mean().backward()
    for (name, parameter), view in zip(original.named_parameters(), flat.layout.views(gradient).values(), strict=True):
        assert parameter.grad is not None
        assert torch.allclose(view, parameter.grad, atol=1e-6), name
    assert torch.allclose(flat.buffers[:4], original[1].running_mean, atol=1e-6)  # type: ignore[arg-type]
    flat.weights.zero_()
    assert all(not p.any() for p in flat.module.parameters())
    assert any(p.any() for p in original.parameters())


def test_convolutions_lie_in_channels_last_order() -> None:
    flat = FlatModel(network())
    weight = dict(flat.module.named_parameters())["0.weight"]
    assert weight.shape == (4, 3, 3, 3)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    stored = flat.state_dict()["0.weight"]
    assert stored.is_contiguous()
    assert torch.equal(stored, weight)


def test_only_trainable_parameters_are_in_the_vector() -> None:
    module = network()
    module[0].requires_grad_(False)
    flat = FlatModel(module)
    assert flat.layout.entries[0].name == "1.weight"
    assert flat.layout.layers[0].name == "1"
    with pytest.raises(ConfigError, match="no trainable"):
        FlatModel(nn.ReLU())
    with pytest.raises(ConfigError, match="one floating type"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


def test_saving_and_reading(tmp_path: Path) -> None:
    flat = FlatModel(network())
    flat.save(tmp_path / "m.safetensors")
    other = FlatModel(network())
    other.weights.zero_()
    other.read(tmp_path / "m.safetensors")
    assert torch.equal(other.weights, flat.weights)
    network().load_state_dict(load_file(tmp_path / "m.safetensors"))
    state = flat.state_dict()
    for change, word in (
        ({"0.weight": torch.zeros(4, 3, 5, 5)}, r"\[4, 3, 5, 5\].*\[4, 3, 3, 3\]"),
        ({"8.bias": torch.full((3,), math.nan)}, "NaN"),
        ({"more": torch.zeros(1)}, "unknown tensor 'more'"),
    ):
        save_file({**state, **change}, tmp_path / "x.safetensors")
        with pytest.raises(ConfigError, match=word):
            other.read(tmp_path / "x.safetensors")
        assert torch.equal(other.weights, flat.weights)
    save_file({k: v for k, v in state.items() if k != "8.bias"}, tmp_path / "x.safetensors")
    with pytest.raises(ConfigError, match=r"no tensor '8\.bias'"):
        other.read(tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_bytes((tmp_path / "m.safetensors").read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cannot be read"):
        other.read(tmp_path / "x.safetensors")


def test_counters_of_batch_norm_begin_anew() -> None:
    flat = FlatModel(network())
    start = flat.weights.clone(), flat.buffers.clone()
    flat.module.train()
    flat.module(torch.randn(4, 3, 4, 4))
    assert int(flat.state_dict()["1.num_batches_tracked"]) == 1
    flat.load(*start)
    assert int(flat.state_dict()["1.num_batches_tracked"]) == 0


# Schedules, streams, plans.


def test_schedules() -> None:
    constant, cosine = Schedule(0.4), Schedule(0.4, "cosine")
    assert [constant.at(t, 9) for t in (1, 9)] == [0.4, 0.4]
    assert cosine.at(1, 9) == 0.4
    assert cosine.at(9, 9) == pytest.approx(0.004)
    assert cosine.at(5, 9) == pytest.approx((0.4 + 0.004) / 2)
    assert cosine.at(1, 1) == 0.4
    assert Schedule(0.4, "cosine", 0.1).at(9, 9) == pytest.approx(0.1)
    values = [cosine.at(t, 9) for t in range(1, 10)]
    assert values == sorted(values, reverse=True)
    steps = Schedule(0.4, "multistep", milestones=(2, 5), decay=0.5)
    assert [steps.at(t, 9) for t in range(1, 8)] == pytest.approx([0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1])


def test_streams_depend_on_their_names_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1]  # type: ignore[index]
    draws = {
        (seed, purpose, *keys): stream(seed, purpose, *keys).integers(1 << 62)
        for seed in (0, 1)
        for purpose in ("order", "noise", "cohort")
        for keys in ((), (1,), (1, 2), (2, 1))
    }
    assert len(set(draws.values())) == len(draws)
    assert stream(0, "order", 1, 2).integers(1 << 62) == draws[0, "order", 1, 2]
    assert torch_seed(0, "noise", 1, 2) == torch_seed(0, "noise", 1, 2) != torch_seed(0, "noise", 2, 1)
    assert 0 <= torch_seed(3, "noise") < 1 << 63
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]
    with pytest.raises(KeyError):
        stream(0, "anything")


def test_a_run_leaves_the_global_generators_alone() -> None:
    import undrift as ud

    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    state = torch.get_rng_state()
    ud.simulate(model, [(torch.randn(6, 2, generator=torch.Generator()), torch.zeros(6).long())], rounds=2, workers=0)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(before, state)
    assert (numpy_before == np.random.get_state()[1]).all()  # type: ignore[index]


def test_an_epoch_visits_every_sample_once_and_uses_the_short_batch() -> None:
    made = list(batches(10, 4, 2, None, stream(0, "order")))
    assert [len(b) for b in made] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(made[:3]), np.concatenate(made[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert list(first) != list(second)


def test_local_steps_walk_on_and_reshuffle() -> None:
    made = list(batches(10, 4, 1, 5, stream(0, "order")))
    assert [len(b) for b in made] == [4, 4, 2, 4, 4]
    assert sorted(np.concatenate(made[:3])) == list(range(10))
    assert list(batches(10, 4, 9, 2, stream(0, "order")))[1].tolist() == made[1].tolist()
    assert [len(b) for b in batches(10, 0, 3, None, stream(0, "order"))] == [10, 10, 10]
    assert [len(b) for b in batches(3, 8, 1, 2, stream(0, "order"))] == [3, 3]


def test_steps_are_the_clients_own() -> None:
    plan = Plan(rounds=1, lr=0.1, batch_size=4, local_epochs=3)
    assert [plan.steps(n) for n in (1, 4, 5, 9)] == [3, 3, 6, 9]
    assert Plan(rounds=1, lr=0.1, batch_size=0, local_epochs=3).steps(7) == 3
    assert Plan(rounds=1, lr=0.1, local_steps=8).steps(7) == 8
    assert Plan(rounds=1, lr=0.1, server_lr="sqrt").step_size(9) == 3
    assert [len(list(batches(n, 4, 3, None, stream(0, "order")))) for n in (1, 4, 5, 9)] == [3, 3, 6, 9]


# Trees.


def test_trees() -> None:
    tree = {"a": {"x": torch.arange(3.0), "none": {}}, "b": torch.ones(2, 2)}
    assert list(flatten(tree)) == ["a/x", "b"]
    assert nbytes(tree) == 4 * 7
    assert nbytes({"d": torch.zeros(3, dtype=torch.float64), "i": torch.zeros(2, dtype=torch.int64)}) == 40
    packing = Packing.of(tree, aligned=False)
    vector = torch.zeros(packing.size)
    packing.pack(tree, vector)
    assert vector.tolist() == [0, 1, 2, 1, 1, 1, 1]
    gaps = Packing.of(tree)
    apart = torch.zeros(gaps.size)
    gaps.pack(tree, apart)
    assert all(leaf.data_ptr() % 64 == apart.data_ptr() % 64 for leaf in flatten(gaps.unpack(apart)).values())
    assert torch.equal(gaps.unpack(apart)["b"], tree["b"])  # type: ignore[arg-type]
    back = packing.unpack(vector)
    assert torch.equal(back["a"]["x"], tree["a"]["x"])  # type: ignore[index]
    vector.zero_()
    assert not back["b"].any()
    copied = clone(tree)
    copied["b"].zero_()
    assert flatten(tree)["b"].all()
    assert list(flatten(unflatten(flatten(tree), tree))) == ["a/x", "b"]


# The store.


def memory(value: float) -> dict[str, Any]:
    return {"rule": {"c": torch.full((4,), float(value))}}


def value_of(store: ClientStates, client: int) -> float | None:
    found = store.get(client)
    return None if found is None else float(found["rule"]["c"][0])


def test_the_store_spills_to_disk_when_it_grows(tmp_path: Path) -> None:
    store = ClientStates(memory(0), tmp_path, budget=3 * 16)
    for client in range(3):
        store.put(client, memory(client), round=1)
    assert not list(tmp_path.glob("*"))
    store.put(3, memory(3), round=1)
    assert len(list(tmp_path.glob("client-*.safetensors"))) == 4
    store.put(1, memory(10), round=2)
    assert [value_of(store, client) for client in range(5)] == [0, 10, 2, 3, None]
    assert len(store) == 4


def test_the_store_keeps_versions_until_a_checkpoint_is_made(tmp_path: Path) -> None:
    store = ClientStates(memory(0), tmp_path, budget=0)
    store.put(7, memory(1), round=1)
    checkpoint = store.flush()
    store.put(7, memory(2), round=2)
    store.put(8, memory(3), round=2)
    assert value_of(store, 7) == 2
    assert (tmp_path / checkpoint[7]).exists()
    late = ClientStates(memory(0), tmp_path, budget=0)
    late.restore(checkpoint)
    assert [value_of(late, client) for client in (7, 8)] == [1, None]
    late.put(7, memory(5), round=3)
    assert late.flush() != checkpoint
    assert (tmp_path / checkpoint[7]).exists()


def test_the_store_owns_what_was_put() -> None:
    store, given = ClientStates(memory(0)), memory(1)
    store.put(0, given, round=1)
    given["rule"]["c"].fill_(9)
    assert value_of(store, 0) == 1


def test_what_is_held_is_not_yet_in_the_store() -> None:
    store = ClientStates(memory(0))
    store.put(0, memory(1), round=1)
    held = store.hold(memory(2))
    assert value_of(store, 0) == 1
    store.put(0, held, round=2)
    assert value_of(store, 0) == 2


def test_what_was_taken_out_of_the_store_stays_as_it_is() -> None:
    store = ClientStates(memory(0))
    store.put(0, memory(1), round=1)
    found = store.get(0)
    for round in range(2, 9):
        store.put(0, memory(round), round)
    assert found is not None
    assert found["rule"]["c"].tolist() == [1] * 4
    assert value_of(store, 0) == 8


def test_states_lie_as_torch_would_let_them_lie() -> None:
    like: dict[str, Any] = {"a": torch.zeros(3), "b": {"c": torch.zeros(2, 5), "n": torch.zeros(1, dtype=torch.int64)}}
    store = ClientStates(like)
    for client in range(5):
        store.put(client, {"a": like["a"] + client, "b": like["b"]}, round=1)
        found = flatten(store.get(client) or {})
        assert {path: leaf.dtype for path, leaf in found.items()} == {k: v.dtype for k, v in flatten(like).items()}
        assert all(leaf.data_ptr() % ALIGNMENT == 0 for leaf in found.values())
        assert found["a"].tolist() == [client] * 3


@pytest.mark.parametrize("size", [64, 3 << 20, 100 << 20])
def test_places_are_used_again_when_nobody_looks_at_them(size: int) -> None:
    memory = PrivateMemory(size)
    places = [memory.place() for _ in range(3)]
    first, second, third = ({torch.frombuffer(place, dtype=torch.uint8).data_ptr()} for place in places)
    tensor = torch.frombuffer(places.pop(0), dtype=torch.uint8)[1:]
    places.pop(0)
    again = {torch.frombuffer(place, dtype=torch.uint8).data_ptr() for place in [memory.place()]}
    assert again == second, "the first one has a tensor in it"
    assert len(first | second | third) == 3
    del tensor
    assert torch.frombuffer(memory.place(), dtype=torch.uint8).data_ptr() in first | second


# Files and folders.


def test_files_are_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, "old")
    monkeypatch.setattr("os.replace", lambda a, b: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": math.nan})


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert read_lines(path) == []
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert read_lines(path) == [{"round": 1}, {"round": 2}]


EXTRA = {"clients": {}, "bytes": {"bytes_down": 0, "bytes_up": 0}, "seconds": 0.0}


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {"a": 1}, resume=False)
    assert folder.load() is None
    folder.save(3, {"x": torch.ones(3)}, EXTRA)
    state, tensors = folder.load() or ({}, {})
    assert (state["round"], tensors["x"].tolist()) == (3, [1, 1, 1])
    server = tmp_path / "run" / "checkpoint" / "server-3.safetensors"
    server.write_bytes(server.read_bytes()[:-4])
    with pytest.raises(RunError, match=r"no checkpoint can be used: .*server-3.safetensors: damaged"):
        folder.load()
    (tmp_path / "run" / "checkpoint" / "state.json").write_text("{")
    with pytest.raises(RunError, match=r"state.json: damaged"):
        folder.load()


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {}, resume=False)
    for round in (1, 2, 3):
        folder.save(round, {"x": torch.full((2,), float(round))}, EXTRA)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert names == ["previous.json", "server-2.safetensors", "server-3.safetensors", "state.json"]
    assert json.loads((tmp_path / "run" / "checkpoint" / "state.json").read_text())["server"] == names[2]


def test_what_a_killed_process_left_is_no_other_run(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.77.part").write_text("se")
    RunFolder(tmp_path, {"seed": 1}, resume=False).begin()
    (tmp_path / ".metrics.jsonl.77.part").write_text("")
    RunFolder(tmp_path, {"seed": 1}, resume=True).begin()
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


# Federations.


def pairs() -> list[tuple[Tensor, Tensor]]:
    return [(torch.arange(n).float()[:, None] + 100 * i, torch.full((n,), i)) for i, n in enumerate((3, 5, 2))]


def test_a_federation_from_clients() -> None:
    made = from_clients(pairs())
    assert len(made) == 3
    assert made.sizes.tolist() == [3, 5, 2]
    assert made.pool.take(made.rows(1))[0].flatten().tolist() == [100, 101, 102, 103, 104]
    pooled = made.pooled()
    assert (len(pooled), pooled.central, pooled.size(0)) == (1, True, 10)


def test_shared_data_is_a_multiset_and_weighs() -> None:
    server = (torch.full((4, 1), -1.0), torch.full((4,), 9))
    made = from_clients(pairs(), server=server)
    assert made.shared_bytes == 0
    shared = made.shared(1.0, seed=0)
    assert shared.sizes.tolist() == [7, 9, 6]
    assert shared.pool.take(shared.rows(2))[1].tolist() == [2, 2, 9, 9, 9, 9]
    assert shared.shared_bytes == 4 * (4 + 8)
    half = made.shared(0.5, seed=0)
    assert half.sizes.tolist() == [5, 7, 4]
    assert half.rows(0).tolist() == half.rows(0).tolist()
    parts = {tuple(sorted(half.rows(client)[-2:])) for client in range(3)}
    assert all(len(set(part)) == 2 and min(part) >= 10 for part in parts)
    assert made.shared(0.01, seed=0).size(0) == 4
    with pytest.raises(DataError, match="needs server data"):
        from_clients(pairs()).shared(1.0, 0)


def test_validation_data_is_held_out_of_every_client() -> None:
    pool = InMemory(torch.arange(100.0)[:, None], torch.zeros(100).long())
    parts = [np.arange(0, 40), np.arange(40, 99), np.array([99])]
    made = federation(pool, parts, validation=0.1, seed=3)
    assert made.sizes.tolist() == [36, 53, 1]
    assert made.validation is not None
    held, trained = (
        set(made.validation.take(np.arange(10))[0].flatten().tolist()),
        set(made.pool.take(made.indices)[0].flatten().tolist()),
    )
    assert len(held) == 10
    assert not held & trained
    assert held | trained == set(range(100))
    again = federation(pool, parts, validation=0.1, seed=3)
    assert (again.indices == made.indices).all()
    with pytest.raises(DataError, match="client 1 has no training data"):
        federation(pool, [np.arange(3), np.arange(0)])


# Accuracy over time.


def history(accuracies: list[float], every: int = 1) -> list[dict[str, Any]]:
    return [{"round": every * i, "test_accuracy": value} for i, value in enumerate(accuracies)]


def test_rolling_accuracy_looks_back_twenty_rounds() -> None:
    values = [i / 100 for i in range(31)]
    smooth = rolling(history(values))
    assert smooth[0] == 0
    assert smooth[2] == pytest.approx(0.01)
    assert smooth[19] == pytest.approx(sum(values[:20]) / 20)
    assert smooth[30] == pytest.approx(sum(values[11:31]) / 20)
    sparse = rolling(history(values, every=5))
    assert sparse[10] == pytest.approx(sum(values[7:11]) / 4)


def test_progress_by_hand() -> None:
    records = history([0.0, 0.4, 0.8, 0.6])
    smooth = [0.0, 0.2, 0.4, 0.45]
    assert rolling(records) == pytest.approx(smooth)
    summary = summarise(records, targets=(0.42, 0.7))
    assert summary["final_accuracy"] == 0.6
    assert summary["best_accuracy"] == 0.8
    assert summary["rolling_accuracy"] == pytest.approx(0.45)
    assert summary["rise_time"] == 3
    assert summarise(history([0.0, 0.5, 0.5, 0.5]))["rise_time"] == 3
    assert summarise(history([0.5, 0.5, 0.5]))["rise_time"] == 0
    assert summary["rounds_to"]["0.4"] == 2
    assert summary["rounds_to"]["0.42"] == 3
    assert summary["rounds_to"]["0.7"] is None
    assert summary["rounds_to_raw"]["0.4"] == 1
    assert summary["rounds_to_raw"]["0.7"] == 2
    assert rounds_to([0, 5], [0.1, 0.3], [0.3, 0.31]) == {"0.3": 5, "0.31": None}
    empty = summarise([{"round": 0, "test_accuracy": None}])
    assert empty["final_accuracy"] is None


def test_every_random_stream_has_a_number_of_its_own() -> None:
    from undrift.core import streams

    assert len(set(streams._PURPOSES.values())) == len(streams._NAMES) == len(set(streams._NAMES))
    sources = Path(streams.__file__).parents[1].rglob("*.py")
    drawn = [path for path in sources if "default_rng(" in path.read_text() and path.name != "standin.py"]
    assert not drawn, f"random numbers outside the table of streams: {drawn}"


def test_many_rows_are_kept_small_and_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = InMemory(torch.zeros(300, 2), torch.zeros(300, dtype=torch.int64))
    rows, offsets = np.random.default_rng(0).integers(0, 300, 50), np.arange(0, 51, 10)
    plain = Federation(pool, rows, offsets)
    monkeypatch.setattr(federations, "_MANY", 16)
    small = Federation(pool, rows, offsets)
    assert (plain.indices.dtype.name, small.indices.dtype.name) == ("int64", "uint16")
    assert all(np.array_equal(plain.rows(client), small.rows(client)) for client in range(5))
    assert small.rows(3).dtype == np.int64
    assert b"".join(plain.described()) == b"".join(small.described()) == rows.tobytes() + offsets.tobytes()
