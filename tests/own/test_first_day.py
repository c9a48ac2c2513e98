"""What a user tries on the first day, outside image classification: right, or refused before round 1 in one line."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import Dataset, Subset, TensorDataset

import undrift as ud
from undrift.rounds.loop import Result
from undrift.rounds.prepare import NotCountedWarning

Pair = tuple[Tensor, Tensor]


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def halves(n: int = 80, seed: int = 0) -> Pair:
    """Points on both sides of a line."""
    x = torch.randn(n, 4, generator=draw(seed))
    return x, (x.sum(1) > 0).long()


CLIENTS = [halves(60, seed) for seed in range(3)]
TEST = halves(200, 9)


def run(model: nn.Module, clients: Any = None, **settings: Any) -> Result:
    given = {"rounds": 15, "lr": 0.3, "batch_size": 20, "workers": 0, "test_data": TEST, **settings}
    return ud.simulate(model, CLIENTS if clients is None else clients, **given)


def really(model: nn.Module, right: Any) -> float:
    with torch.no_grad():
        return float(right(model(TEST[0])).float().mean())


def linear(outputs: int) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, outputs)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.bool])
def test_binary_accuracy_is_the_true_one(shape: tuple[int, ...], kind: torch.dtype) -> None:
    clients = [(x, y.view(shape).to(kind)) for x, y in CLIENTS]
    result = run(linear(1), clients, task="binary", test_data=(TEST[0], TEST[1].view(shape).to(kind)))
    true = really(result.model, lambda out: (out[:, 0] > 0).long() == TEST[1])
    assert result.summary["final_accuracy"] == pytest.approx(true)
    assert true > 0.9


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_binary_without_a_task_is_not_counted_and_says_why(shape: tuple[int, ...]) -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(out.flatten(), y.flatten().float())

    clients = [(x, y.view(shape)) for x, y in CLIENTS]
    with pytest.warns(NotCountedWarning, match=r"accuracy is not counted: outputs \[32, 1\] float32"):
        result = run(linear(1), clients, loss=loss, test_data=(TEST[0], TEST[1].view(shape)))
    assert result.history[-1]["test_accuracy"] is None
    assert result.summary["final_accuracy"] is None
    assert result.summary["monitor"] == "-loss"


class WithFeatures(nn.Module):
    """Scores of two classes with five features behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = self.hidden(x)
        return torch.cat([self.head(features), 3 + features], 1)


def test_features_beside_the_scores_are_no_classes() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out[:, :2], y)

    with pytest.warns(NotCountedWarning, match="does not treat the outputs"):
        result = run(WithFeatures(), loss=loss)
    assert result.summary["final_accuracy"] is None

    def right(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs[:, :2].argmax(1) == targets).float().mean())

    with pytest.warns(NotCountedWarning):
        result = run(WithFeatures(), loss=loss, metrics={"right": right}, monitor="right")
    assert result.summary["final_right"] == pytest.approx(really(result.model, lambda o: o[:, :2].argmax(1) == TEST[1]))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(label_smoothing=0.1), nn.MultiMarginLoss(), nn.NLLLoss()])
def test_losses_of_classes_are_counted(loss: Any) -> None:
    model = nn.Sequential(linear(2), nn.LogSoftmax(1)) if isinstance(loss, nn.NLLLoss) else linear(2)
    result = run(model, loss=loss)
    assert result.summary["final_accuracy"] == pytest.approx(really(result.model, lambda o: o.argmax(1) == TEST[1]))


def labels_of(x: Tensor) -> Tensor:
    return (x[:, :3] > 0).long()


def test_multilabel() -> None:
    clients = [(x, labels_of(x)) for x, _ in CLIENTS]
    test = (TEST[0], labels_of(TEST[0]))
    result = run(linear(3), clients, task="multilabel", test_data=test)
    right = (result.model(TEST[0]) > 0) == test[1].bool()
    assert result.summary["final_accuracy"] == pytest.approx(right.float().mean().item())
    assert result.summary["final_exact"] == pytest.approx(right.all(1).float().mean().item())
    with pytest.raises(ud.ConfigError, match=r"outputs \[32, 3\] float32 and targets \[32, 3\] int64.*give task="):
        run(linear(3), clients, test_data=test)
    with pytest.raises(ud.ConfigError, match=r"task = 'multilabel': .*gives \[32, 2\] float32, targets are \[32, 3\]"):
        run(linear(2), clients, task="multilabel", test_data=test)


class Tokens(nn.Module):
    """Guesses every next token from this one."""

    def __init__(self, flat: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.flat = nn.Embedding(6, 6), flat

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.table(tokens)
        return out.flatten(0, 1) if self.flat else out


def sentences(n: int, seed: int) -> Pair:
    first = torch.randint(0, 6, (n, 1), generator=draw(seed))
    text = (first + torch.arange(6)) % 6
    targets = text[:, 1:].clone()
    targets[::3, -1] = -100
    return text[:, :-1], targets


def test_language_model_counts_tokens_and_leaves_out_the_ignored() -> None:
    clients, test = [sentences(30, seed) for seed in range(3)], sentences(40, 9)
    result = run(Tokens(), clients, task="language-model", test_data=test, lr=2.0)
    out, targets = result.model(test[0]), test[1]
    known = targets != -100
    loss = nn.functional.cross_entropy(out[known], targets[known]).item()
    assert result.summary["final_accuracy"] == pytest.approx((out.argmax(2) == targets)[known].float().mean().item())
    assert result.summary["final_loss"] == pytest.approx(loss, rel=1e-5)
    assert result.summary["final_perplexity"] == pytest.approx(float(np.exp(loss)), rel=1e-5)
    with pytest.raises(ud.ConfigError, match=r"the model gives \[160, 6\] float32, targets are \[32, 5\] int64"):
        run(Tokens(flat=True), clients, task="language-model", test_data=test)


class Frozen(nn.Module):
    """A backbone with batch norm that is not trained, in evaluation mode, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8)
        nn.init.constant_(norm.get_buffer("running_mean"), 0.3)
        self.backbone = nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU()).requires_grad_(False).eval()
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x))
        return out


def test_a_frozen_backbone_in_evaluation_mode_is_left_alone() -> None:
    before = Frozen().backbone.state_dict()
    for workers in (0, 2):
        result = run(Frozen(), workers=workers, rounds=3)
        after = result.model.get_submodule("backbone").state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert result.history[1]["bytes_up"] == 3 * 4 * (8 * 2 + 2)


class Positions(nn.Module):
    """A constant table of 1,000 numbers in double precision, and a counter that training changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 2)
        self.table: Tensor
        self.seen: Tensor
        self.register_buffer("table", torch.linspace(0, 1, 1000, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        out: Tensor = self.head(x + self.table[:4].float())
        return out


def test_constant_buffers_are_neither_sent_nor_changed() -> None:
    result = run(Positions(), rounds=2)
    assert result.history[1]["bytes_down"] == 3 * 4 * (4 * 2 + 2 + 1)
    table = result.model.get_buffer("table")
    assert table.dtype == torch.float64
    assert torch.equal(table, Positions().get_buffer("table"))
    assert result.model.get_buffer("seen") == 2 * 3


def test_batch_norm_and_a_last_batch_of_one() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    clients = [CLIENTS[0], halves(41, 1)]
    with pytest.raises(ud.ConfigError, match=r"client 1 has 41 samples.*train\.drop_last = true"):
        run(model, clients)
    result = run(model, clients, drop_last=True, rounds=2)
    assert result.summary["final_accuracy"] is not None


class Items(Dataset[tuple[Tensor, int]]):
    """A map-style data set; ``noise`` makes items differ from visit to visit."""

    def __init__(self, pair: Pair, noise: float = 0.0) -> None:
        self.pair, self.noise = pair, noise

    def __len__(self) -> int:
        return len(self.pair[1])

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        x, y = self.pair
        return x[place] + self.noise * torch.randn(4), int(y[place])


def plain(result: Result) -> tuple[list[float], list[dict[str, Any]]]:
    assert result.server is not None
    times = ("seconds",)
    return result.server.x.tolist(), [{k: v for k, v in r.items() if k not in times} for r in result.history]


def test_every_usual_form_of_data_gives_the_same_numbers() -> None:
    usual = plain(run(linear(2), server_data=TEST, algorithm="fsl"))
    forms: dict[str, Any] = {
        "data sets": Items,
        "tensor data sets": lambda pair: TensorDataset(*pair),
        "subsets": lambda pair: Subset(TensorDataset(*pair), range(len(pair[1]))),
        "lists of items": lambda pair: list(zip(*pair, strict=True)),
        "dictionaries": lambda pair: [{"x": x, "label": y} for x, y in zip(*pair, strict=True)],
        "numpy": lambda pair: (pair[0].double().numpy(), pair[1].to(torch.int32).numpy()),
        "lazy": lambda pair: Items(pair),
    }
    for name, form in forms.items():
        lazy = True if name == "lazy" else None
        clients = [form(pair) for pair in CLIENTS]
        result = run(linear(2), clients, test_data=form(TEST), server_data=form(TEST), algorithm="fsl", lazy=lazy)
        assert plain(result) == usual, name


def test_hugging_face_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    clients = [
        datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist()}).with_format("torch") for x, y in CLIENTS
    ]
    assert plain(run(linear(2), clients, rounds=2)) == plain(run(linear(2), rounds=2))


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ([torch.zeros(3), torch.zeros(4)], "client 0: .*differ in length"),
        ([(object(), 1), (object(), 0)] * 2, "client 0: .*object.* cannot be stacked; give collate="),
        ([(torch.zeros(3), 0), (torch.zeros(4), 1), (torch.zeros(3), 0)], r"Tensor \[3\], Tensor \[4\] cannot"),
        (iter([]), "client 0: a pair .* or a data set with a length"),
        ([{"x": torch.zeros(3)}] * 3, "client 0: dictionaries need 'labels' or 'label'"),
    ],
)
def test_data_that_cannot_be_used_say_why(client: Any, message: str) -> None:
    with pytest.raises(ud.DataError, match=message):
        run(linear(2), [client])


def test_ragged_items_with_collate() -> None:
    def collate(items: Sequence[tuple[Tensor, int]]) -> Pair:
        return torch.stack([x.mean() * torch.ones(4) for x, _ in items]), torch.tensor([y for _, y in items])

    ragged = [[(torch.randn(3 + n % 4, generator=draw(n)), n % 2) for n in range(30)] for _ in range(2)]
    result = run(linear(2), ragged, collate=collate, test_data=ragged[0], rounds=2)
    assert result.summary["final_loss"] > 0


class Named(NamedTuple):
    scores: Tensor
    more: Tensor


@pytest.mark.parametrize("kind", ["tuple", "named", "object", "mapping"])
def test_outputs_of_other_forms(kind: str) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear(2)

        def forward(self, x: Tensor) -> Any:
            out = self.inner(x)
            made = {
                "tuple": (out, x),
                "named": Named(out, x),
                "object": SimpleNamespace(logits=out),
                "mapping": {"loss": None, "logits": out},
            }
            return made[kind]

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear(2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    assert plain(run(Wrapped(), rounds=2)) == plain(run(Inner(), rounds=2))


def test_a_data_set_that_augments_is_refused_unless_it_is_read_at_every_visit() -> None:
    noisy = [Items(pair, 0.1) for pair in CLIENTS]
    with pytest.raises(ud.DataError, match=r"client 0: item 0 differs from visit to visit.*lazy=True"):
        run(linear(2), noisy)
    here = plain(run(linear(2), noisy, lazy=True, test_data=Items(TEST)))
    assert plain(run(linear(2), noisy, lazy=True, test_data=Items(TEST), workers=2)) == here
    frozen = plain(run(linear(2), noisy, lazy=False))
    assert frozen[0] != here[0]
    torch.manual_seed(123)  # global state does not matter
    assert plain(run(linear(2), noisy, lazy=True, test_data=Items(TEST))) == here


def test_augmentation_differs_between_rounds_and_clients() -> None:
    seen: list[float] = []

    class Watched(Items):
        def __getitem__(self, place: int) -> tuple[Tensor, int]:
            seen.append(torch.rand(()).item())
            return super().__getitem__(place)

    run(linear(2), [Watched(CLIENTS[0])] * 2, lazy=True, rounds=2, test_data=None)
    counts = {value: seen.count(value) for value in seen}
    assert len(counts) > 200  # 2 rounds x 2 clients x 60 items, and what was tried before round 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"algorithm": "scafold"}, "did you mean 'scaffold'"),
        ({"device": "gpu"}, "device = 'gpu' is unknown"),
        ({"device": "cuda:7"}, "no such device here"),
        ({"engine": "loca"}, "did you mean 'local'"),
        ({"task": "binry"}, "did you mean 'binary'"),
        ({"monitor": "f1"}, "monitor = 'f1': there are accuracy, loss"),
        ({"metrics": {"loss": len}}, "'loss' is no name for a metric"),
        ({"metrics": {"f1": 3}}, "no function"),
    ],
)
def test_names_that_do_not_exist(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.ConfigError, match=message):
        run(linear(2), **wrong)


def test_names_from_python() -> None:
    named = plain(run(linear(2), algorithm="scaffold", device="auto", rounds=3))
    assert named == plain(run(linear(2), algorithm=ud.scaffold(), rounds=3))
    chain = ud.algorithm("fedpvr+fsl", fedpvr={"layers": 1}, fsl={"gamma": 0.5})
    by_hand = ud.fedpvr(layers=1) + ud.fsl(gamma=0.5)
    assert plain(run(linear(2), algorithm=chain, server_data=TEST, rounds=2)) == plain(
        run(linear(2), algorithm=by_hand, server_data=TEST, rounds=2)
    )


def test_the_trained_model_is_an_ordinary_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 9, 2))
    x = torch.randn(40, 3, 5, 5)
    result = run(model, [(x, torch.arange(40) % 2)], test_data=(x, torch.arange(40) % 2), rounds=1)
    save_file(result.model.state_dict(), tmp_path / "model.safetensors")
    assert torch.nn.utils.parameters_to_vector(result.model.parameters()).numel() == 4 * 27 + 4 + 72 + 2
    assert all(parameter.is_contiguous() for parameter in result.model.parameters())


def test_dictionaries_and_tuples_reach_the_model() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear(2)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            out: Tensor = self.inner(torch.cat([left, right], 1))
            return out

    by_name = [({"left": x[:, :2], "right": x[:, 2:]}, y) for x, y in (*CLIENTS, TEST)]
    in_order = [((x[:, :2], x[:, 2:]), y) for x, y in (*CLIENTS, TEST)]
    ours = plain(run(Two(), by_name[:3], test_data=by_name[3], rounds=3))
    assert ours == plain(run(Two(), in_order[:3], test_data=in_order[3], rounds=3))
    assert ours == plain(run(Two(), by_name[:3], test_data=by_name[3], rounds=3, workers=2))


def test_tied_parameters_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = linear(4), linear(4)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.two(torch.relu(self.one(x)))
            return out

    result = run(Tied(), rounds=1)
    assert result.history[1]["bytes_up"] == 3 * 4 * (16 + 4 + 4)
    assert result.model.get_parameter("one.weight") is result.model.get_parameter("two.weight")


def test_f1_reaches_records_summary_and_monitor() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    f1 = torchmetrics.classification.MulticlassF1Score(num_classes=2, average="macro")
    results = [run(linear(2), metrics={"f1": f1}, monitor="f1", workers=workers) for workers in (0, 1, 2)]
    for result in results:
        expected = float(f1(result.model(TEST[0]), TEST[1]))
        assert result.history[-1]["test_f1"] == result.summary["final_f1"] == pytest.approx(expected)
        assert result.summary["best_f1"] >= result.summary["final_f1"]
        assert result.summary["monitor"] == "f1"
    assert plain(results[0]) == plain(results[1]) == plain(results[2])


def test_segmentation_counts_pixels() -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 1, 4, 4)
    y = (x[:, 0] > 0).long()
    y[0] = -100
    result = run(nn.Conv2d(1, 2, 1), [(x, y)], test_data=(x, y), lr=0.5)
    out = result.model(x)
    assert result.summary["final_accuracy"] == pytest.approx((out.argmax(1) == y)[1:].float().mean().item())


def test_every_client_has_test_data_of_its_own() -> None:
    result = run(linear(2), client_test=0.25, test_data=None, rounds=4)
    last = result.history[-1]
    assert 0 <= last["clients_accuracy_worst"] <= last["clients_accuracy_p10"] <= last["clients_accuracy"] <= 1
    assert last["clients_worst"] in range(3)
    again = run(linear(2), client_test=0.25, test_data=None, rounds=4, workers=2)
    assert plain(again) == plain(result)


def test_callbacks_see_every_evaluation_once_and_may_end_the_run() -> None:
    seen: list[int] = []
    result = run(linear(2), rounds=5, eval_every=2, callbacks=[lambda record: seen.append(record["round"])])
    assert seen == [0, 2, 4, 5] == [record["round"] for record in result.history]
    ended = run(linear(2), rounds=20, callbacks=[lambda record: record["round"] == 3], workers=2)
    assert ended.summary["rounds"] == 3 == ended.history[-1]["round"]
    early = run(linear(2), rounds=500, lr=1e-6, patience=3)
    assert early.summary["rounds"] <= 10


def test_no_warning_in_the_usual_case() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(linear(2), rounds=1)
