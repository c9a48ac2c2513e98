"""Blocks, and cuts that share every parameter and change nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from undrift import models
from undrift.errors import ConfigError

CIFAR = (3, 32, 32)


def small(name: str) -> nn.Sequential:
    options = {"width": 0.125} if name == "vgg11" else {}
    return models.build(name, input_shape=CIFAR, classes=10, **options)  # type: ignore[arg-type]


def test_blocks_of_a_cnn() -> None:
    assert models.blocks(small("cnn-cifar")) == [
        ("conv1", "pool1", "relu1"),
        ("conv2", "pool2", "relu2", "flatten", "dropout1"),
        ("dense1", "relu3", "dropout2"),
        ("dense2",),
    ]


def test_blocks_of_a_resnet_are_its_groups() -> None:
    assert models.blocks(small("resnet18")) == [("group1",), ("group2",), ("group3",), ("group4",), ("head",)]


def test_what_comes_before_the_first_layer_goes_with_it() -> None:
    assert models.blocks(small("mlp")) == [("flatten", "dense1", "relu1"), ("dense2",)]


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4, affine=True)]
)
def test_a_norm_layer_belongs_to_the_block_before_it(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, 2))
    assert models.blocks(model) == [("0", "1", "2", "3"), ("4",)]


def test_a_norm_layer_in_front_goes_with_the_first_block() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2))
    assert models.blocks(model) == [("0", "1"), ("2",)]


@pytest.mark.parametrize("name", models.names())
def test_every_cut_keeps_the_function_and_divides_the_parameters(name: str) -> None:
    model = small(name).eval()
    x = torch.randn(2, *CIFAR)
    expected = model(x)
    children = list(model.named_children())
    owners = [i for i, (_, child) in enumerate(children) if list(child.parameters())]
    inside = [child for child, _ in children[owners[0] : owners[-1]]]
    for where in [*range(1, len(models.blocks(model))), *inside]:
        client, server = models.cut(model, where)
        assert torch.equal(server(client(x)), expected)
        parts = {**dict(client.named_parameters()), **dict(server.named_parameters())}
        assert [(n, id(p)) for n, p in parts.items()] == [(n, id(p)) for n, p in model.named_parameters()]
        assert {*client.state_dict(), *server.state_dict()} == {*model.state_dict()}
        assert list(client.parameters())
        assert list(server.parameters())


def test_a_number_counts_the_blocks_at_the_client() -> None:
    client, server = models.cut(small("resnet18"), 4)
    assert [name for name, _ in client.named_children()] == ["group1", "group2", "group3", "group4"]
    assert [name for name, _ in server.named_children()] == ["head"]


def test_a_name_is_the_last_layer_at_the_client() -> None:
    client, server = models.cut(small("cnn-cifar"), "conv2")
    assert [name for name, _ in client.named_children()] == ["conv1", "pool1", "relu1", "conv2"]
    assert next(iter(server.named_children()))[0] == "pool2"


@pytest.mark.parametrize("where", [0, -1, 4, 9])
def test_cut_outside_the_blocks(where: int) -> None:
    with pytest.raises(ConfigError, match=f"cut = {where} of 4 blocks; allowed: 1 to 3 blocks"):
        models.cut(small("cnn-split"), where)


@pytest.mark.parametrize(("where", "side"), [("flatten", "client"), ("dense2", "server")])
def test_cut_that_leaves_a_side_empty(where: str, side: str) -> None:
    with pytest.raises(ConfigError, match=f"leaves the {side} without parameters; .*one of dense1, relu1"):
        models.cut(small("mlp"), where)


def test_cut_at_an_unknown_layer() -> None:
    with pytest.raises(ConfigError, match="'conv9' is not a layer of the model; allowed: 1 to 3"):
        models.cut(small("cnn-cifar"), "conv9")


@pytest.mark.parametrize("where", [1, "dense1"])
def test_one_block_cannot_be_cut(where: int | str) -> None:
    with pytest.raises(ConfigError, match="fewer than two blocks cannot be cut"):
        models.cut(small("linear"), where)


def test_the_server_can_differentiate_what_it_receives() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    client, server = models.cut(model, "0")
    z = client(torch.randn(5, 3)).detach().requires_grad_()
    before = z.detach().clone()
    server(z).sum().backward()
    assert z.grad is not None
    assert torch.equal(z.detach(), before)
    assert isinstance(model[1], nn.ReLU)
    assert model[1].inplace
