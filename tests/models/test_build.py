"""The papers' networks: sizes, layers, starting weights, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from undrift import models
from undrift.errors import ConfigError

CIFAR = (3, 32, 32)
MNIST = (1, 28, 28)


def conv(inside: int, outside: int, kernel: int = 3) -> int:
    return kernel * kernel * inside * outside + outside


def dense(inside: int, outside: int) -> int:
    return inside * outside + outside


def residual(inside: int, outside: int) -> int:
    """Two 3x3 convolutions without bias, scale and shift of two norms; the same for a 1x1 shortcut."""
    body = 9 * inside * outside + 9 * outside * outside + 4 * outside
    return body + (inside * outside + 2 * outside if inside != outside else 0)


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


RESNET8 = 27 * 16 + 32 + residual(16, 16) + residual(16, 32) + residual(32, 64) + dense(64, 10)
RESNET18 = (27 * 64 + 128 + 2 * residual(64, 64) + dense(512, 10)) + sum(
    residual(c // 2, c) + residual(c, c) for c in (128, 256, 512)
)
ADC = conv(3, 64) + conv(64, 64) + conv(64, 128) + conv(128, 128)
VGG_CONVS = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
COUNTS: list[tuple[str, tuple[int, ...], dict[str, Any], int]] = [
    ("cnn-emnist", MNIST, {}, conv(1, 32) + conv(32, 64) + dense(10816, 128) + dense(128, 10)),
    ("cnn-cifar", CIFAR, {}, conv(3, 32) + conv(32, 64) + dense(4096, 128) + dense(128, 10)),
    ("cnn-adc", CIFAR, {}, ADC + dense(8192, 512) + dense(512, 256) + dense(256, 128) + dense(128, 10)),
    ("cnn-split", CIFAR, {}, conv(3, 32) + conv(32, 64) + dense(4096, 128) + dense(128, 10)),
    ("cnn-split", MNIST, {}, conv(1, 32) + conv(32, 64) + dense(64 * 49, 128) + dense(128, 10)),
    ("vgg11", CIFAR, {}, sum(conv(*c) for c in VGG_CONVS) + 2 * dense(512, 512) + dense(512, 10)),
    ("resnet8", CIFAR, {}, RESNET8),
    ("resnet8", CIFAR, {"norm": "group"}, RESNET8),
    ("resnet18", CIFAR, {}, RESNET18),
    ("mlp", MNIST, {}, dense(784, 200) + dense(200, 10)),
    ("mlp", (20,), {"hidden": [7, 5]}, dense(20, 7) + dense(7, 5) + dense(5, 10)),
    ("mlp", (20,), {"hidden": []}, dense(20, 10)),
    ("linear", CIFAR, {}, dense(3072, 10)),
    ("linear", (1, 8, 8), {}, dense(64, 10)),
]


@pytest.mark.parametrize(("name", "shape", "options", "count"), COUNTS)
def test_parameter_count_and_output_shape(
    name: str, shape: tuple[int, ...], options: dict[str, Any], count: int
) -> None:
    model = models.build(name, input_shape=shape, classes=10, **options)
    assert size(model) == count
    assert model(torch.randn(2, *shape)).shape == (2, 10)


def test_published_sizes() -> None:
    # FedPVR's VGG-11 for CIFAR and the usual CIFAR ResNet-18.
    assert size(models.build("vgg11", input_shape=CIFAR, classes=10)) == 9_750_922
    assert size(models.build("resnet18", input_shape=CIFAR, classes=10)) == 11_173_962
    assert size(models.build("cnn-cifar", input_shape=CIFAR, classes=10)) == 545_098


def test_width_shrinks_channels_and_dense() -> None:
    model = models.build("vgg11", input_shape=CIFAR, classes=10, width=0.25)
    small = sum(conv(i if i == 3 else i // 4, o // 4) for i, o in VGG_CONVS)
    assert size(model) == small + 2 * dense(128, 128) + dense(128, 10)


@pytest.mark.parametrize("name", ["cnn-emnist", "cnn-cifar", "cnn-adc", "cnn-split", "resnet8", "resnet18"])
def test_small_images(name: str) -> None:
    assert models.build(name, input_shape=(1, 8, 8), classes=10)(torch.randn(2, 1, 8, 8)).shape == (2, 10)


LAYERS = {
    "cnn-emnist": "conv1 relu1 conv2 pool1 relu2 flatten dropout1 dense1 relu3 dropout2 dense2",
    "cnn-cifar": "conv1 pool1 relu1 conv2 pool2 relu2 flatten dropout1 dense1 relu3 dropout2 dense2",
    "cnn-adc": "conv1 relu1 conv2 pool1 relu2 conv3 relu3 conv4 pool2 relu4 flatten "
    "dense1 relu5 dense2 relu6 dense3 relu7 dense4",
    "cnn-split": "conv1 pool1 relu1 conv2 pool2 relu2 flatten dense1 relu3 dense2",
    "vgg11": "conv1 pool1 relu1 conv2 pool2 relu2 conv3 relu3 conv4 pool3 relu4 "
    "conv5 relu5 conv6 pool4 relu6 conv7 relu7 conv8 pool5 relu8 "
    "flatten dropout1 dense1 relu9 dropout2 dense2 relu10 dense3",
    "resnet8": "group1 group2 group3 head",
    "resnet18": "group1 group2 group3 group4 head",
    "mlp": "flatten dense1 relu1 dense2",
    "linear": "flatten dense1",
}


@pytest.mark.parametrize("name", models.names())
def test_layer_sequence(name: str) -> None:
    model = models.build(name, input_shape=CIFAR, classes=10)
    assert " ".join(n for n, _ in model.named_children()) == LAYERS[name]
    rates = [layer.p for layer in model if isinstance(layer, models.layers.Dropout)]
    expected = {"cnn-emnist": [0.25, 0.5], "cnn-cifar": [0.25, 0.5], "vgg11": [0.5, 0.5]}
    assert rates == expected.get(name, [])


def test_residual_block_registers_its_layers_in_order_of_use() -> None:
    model = models.build("resnet8", input_shape=CIFAR, classes=10)
    own = [name for name, _ in model.get_submodule("group2.block1").named_children()]
    assert own == ["conv1", "norm1", "conv2", "norm2", "shortcut_conv", "shortcut_norm"]


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("init", ["torch", "glorot"])
def test_weights_come_from_the_seed_alone(name: str, init: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        model = models.build(name, input_shape=CIFAR, classes=10, init_scheme=init, seed=seed)
        return nn.utils.parameters_to_vector(model.parameters())

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = weights(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(weights(3), first)
    assert not torch.equal(weights(4), first)


@pytest.mark.parametrize("name", ["cnn-cifar", "resnet8", "mlp"])
def test_glorot(name: str) -> None:
    model = models.build(name, input_shape=CIFAR, classes=10, init_scheme="glorot")
    for layer in model.modules():
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        window = math.prod(layer.weight.shape[2:])
        bound = math.sqrt(6 / (window * (layer.weight.shape[0] + layer.weight.shape[1])))
        largest = layer.weight.abs().max().item()
        assert 0.95 * bound < largest <= bound * (1 + 1e-6)
        assert layer.bias is None or not layer.bias.any()


def test_torch_scheme_is_pytorchs_own() -> None:
    model = models.build("linear", input_shape=(50,), classes=4, seed=7)
    torch.manual_seed(7)
    assert torch.equal(model.get_parameter("dense1.weight"), nn.Linear(50, 4).weight)


REFUSED: list[tuple[str, tuple[int, ...], dict[str, Any], str]] = [
    ("cnn-cifr", CIFAR, {}, "did you mean 'cnn-cifar'"),
    ("zzz", CIFAR, {}, "allowed: cnn-emnist"),
    ("cnn-cifar", (64,), {}, r"'cnn-cifar' needs images .* \(64,\)"),
    ("resnet8", (8, 8), {}, r"'resnet8' needs images .* \(8, 8\)"),
    ("cnn-cifar", (3, 3, 3), {}, r"'cnn-cifar'.*\(3, 3, 3\) are too small"),
    ("vgg11", MNIST, {}, r"'vgg11'.*\(1, 28, 28\) are too small"),
    ("linear", (), {}, "not the shape of a sample"),
    ("resnet8", CIFAR, {"norm": "layer"}, "norm = 'layer'.*batch, group"),
    ("cnn-cifar", CIFAR, {"norm": "group"}, "norm does not apply to 'cnn-cifar', only to resnet8"),
    ("mlp", CIFAR, {"width": 0.5}, "width does not apply to 'mlp', only to vgg11"),
    ("linear", CIFAR, {"hidden": [3]}, "hidden does not apply to 'linear', only to mlp"),
    ("vgg11", CIFAR, {"width": 0}, "width = 0"),
    ("mlp", CIFAR, {"hidden": [0]}, r"hidden = \(0,\)"),
    ("mlp", CIFAR, {"init_scheme": "he"}, "init_scheme = 'he'.*torch, glorot"),
    ("mlp", CIFAR, {"classes": 0}, "classes = 0"),
]


@pytest.mark.parametrize(("name", "shape", "options", "message"), REFUSED)
def test_refused(name: str, shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        models.build(name, input_shape=shape, **{"classes": 10, **options})
    assert "\n" not in str(error.value)


def test_public_names() -> None:
    assert set(models.__all__) == {"blocks", "build", "cut", "names"}
    assert all(hasattr(models, name) for name in models.__all__)
