"""The fast layers against the textbook ones, with the same weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift import models
from undrift.models.layers import Dropout, Flatten, GlobalPool
from undrift.models.resnet import Residual


def textbook_cifar() -> nn.Sequential:
    """ReLU before pooling, dropout before flattening, features in the order (c, h, w)."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(4096, 128), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(128, 10)),
    )


def rows_first(weight: Tensor) -> Tensor:
    """The first dense layer's columns from the order (c, h, w) to (h, w, c)."""
    return weight.view(128, 64, 8, 8).permute(0, 2, 3, 1).reshape(128, 4096)


def test_cnn_cifar_is_the_textbook_network() -> None:
    torch.manual_seed(0)
    plain = textbook_cifar().double().eval()
    ours = models.build("cnn-cifar", input_shape=(3, 32, 32), classes=10).double().eval()
    state = dict(zip(ours.state_dict(), plain.state_dict().values(), strict=True))
    ours.load_state_dict({**state, "dense1.weight": rows_first(state["dense1.weight"])})
    x, y = torch.randn(4, 3, 32, 32, dtype=torch.double), torch.tensor([0, 3, 3, 9])
    torch.testing.assert_close(ours(x), plain(x), rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(F.cross_entropy(ours(x), y), list(ours.parameters()))
    wanted = torch.autograd.grad(F.cross_entropy(plain(x), y), list(plain.parameters()))
    for (name, _), got, expected in zip(ours.named_parameters(), found, wanted, strict=True):
        expected = rows_first(expected) if name == "dense1.weight" else expected
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_pooling_before_relu_is_exact_even_at_ties() -> None:
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (4, 8, 9, 9)).float().requires_grad_()  # many ties, an odd size
    g = torch.randn(4, 8, 4, 4)
    before, after = F.max_pool2d(x.relu(), 2), F.max_pool2d(x, 2).relu()
    assert torch.equal(before, after)
    assert torch.equal(torch.autograd.grad(before, x, g)[0], torch.autograd.grad(after, x, g)[0])


@pytest.mark.parametrize("name", ["cnn-emnist", "cnn-split", "resnet8"])
def test_memory_layout_does_not_matter(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, input_shape=(3, 16, 16), classes=10).double().train()
    x = torch.randn(4, 3, 16, 16, dtype=torch.double)
    torch.manual_seed(1)
    expected = model(x)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.manual_seed(1)
    got = model(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_flatten_runs_over_rows_columns_channels() -> None:
    x = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    flat = Flatten()(x)
    assert flat.tolist() == [[x[0, c, h, w].item() for h in range(3) for w in range(4) for c in range(2)]]
    assert flat.data_ptr() == x.data_ptr()
    assert Flatten()(torch.zeros(5, 2, 3)).shape == (5, 6)


def test_global_pool_is_the_mean() -> None:
    x = torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(GlobalPool()(x), x.mean((2, 3)))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_residual_block(stride: int, norm: str) -> None:
    torch.manual_seed(0)
    block = Residual(16, 16, stride, norm).double()
    x = torch.randn(3, 16, 6, 6, dtype=torch.double, requires_grad=True)
    y = F.relu(block.norm1(F.conv2d(x, block.conv1.weight, stride=stride, padding=1)))
    y = block.norm2(F.conv2d(y, block.conv2.weight, padding=1))
    skip = block.shortcut_norm(F.conv2d(x, block.shortcut_conv.weight, stride=stride)) if stride == 2 else x
    expected = F.relu(y + skip)
    got = block(x)
    torch.testing.assert_close(got, expected)
    g = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(got, x, g)[0], torch.autograd.grad(expected, x, g)[0])


@pytest.mark.parametrize("p", [0.25, 0.5, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_statistics(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    n = 400_003
    x = torch.ones(n, dtype=dtype, requires_grad=True)
    y = Dropout(p).train()(x)
    assert y.dtype == dtype
    kept = y != 0
    scale = torch.tensor(1 / (1 - p), dtype=dtype)
    torch.testing.assert_close(y[kept], scale.expand(int(kept.sum())))
    sigma = (p * (1 - p) / n) ** 0.5
    assert abs(kept.double().mean().item() - (1 - p)) < 5 * sigma
    # Neighbours share a random word: they must be independent all the same, at every distance within it.
    for lag in range(1, 9):
        both = (kept[lag:] & kept[:-lag]).double().mean().item()
        assert abs(both - (1 - p) ** 2) < 8 * sigma
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())


def test_dropout_uses_every_byte_alike() -> None:
    torch.manual_seed(0)
    kept = (Dropout(0.5).train()(torch.ones(80_000)) != 0).view(-1, 8).double().mean(0)
    assert (kept - 0.5).abs().max() < 5 * 0.5 / 100


def test_dropout_follows_the_global_generator() -> None:
    drop, x = Dropout(0.25).train(), torch.ones(10, 33)
    torch.manual_seed(5)
    first, second = drop(x), drop(x)
    torch.manual_seed(5)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)


def test_dropout_does_nothing_in_evaluation_or_with_p_0() -> None:
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0).train()(x) is x
    with pytest.raises(ValueError, match="p = 1"):
        Dropout(1)
    assert repr(Dropout(0.5)) == "Dropout(p=0.5)"


@pytest.mark.parametrize("name", ["cnn-cifar", "resnet8"])
def test_bf16_autocast(name: str) -> None:
    model = models.build(name, input_shape=(3, 32, 32), classes=10).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 3]))
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(model.parameters())))
