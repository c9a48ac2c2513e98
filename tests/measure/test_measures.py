"""Every measure against numbers that follow by hand or from a few independent lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.experiment.config import parse
from undrift.experiment.from_config import run_config
from undrift.experiment.measures import chosen
from undrift.measure.cka import Cka, centred_kernel, cka
from undrift.measure.clients import ClassAccuracy, ClientAccuracy
from undrift.measure.drift import Drift, Updates
from undrift.measure.gradients import GradientMeasure, Gradients, dissimilarity
from undrift.measure.skew import SkewMeasure, skew_of

ALL = dict.fromkeys(("drift", "updates", "cka", "gradients", "classes", "clients", "skew"), True)


def scalar_model() -> nn.Module:
    """``x -> w*x`` with ``w = 0`` at first: the gradient of the squared loss at 0 is ``-mean(x*y)*2``."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(layer)


def square_loss(out: Tensor, target: Tensor) -> Tensor:
    return ((out.squeeze(1) - target) ** 2).mean()


def constant_clients(*targets: float, samples: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Clients with inputs 1 and one target each: the gradient of ``f_i`` at ``w`` is ``2(w - t_i)``."""
    return [(torch.ones(samples, 1), torch.full((samples,), target)) for target in targets]


def simulated(clients: list[tuple[Tensor, Tensor]], *measures: Any, **more: Any) -> list[dict[str, Any]]:
    settings: dict[str, Any] = {"rounds": 1, "batch_size": 0, "lr": 0.25, "loss": square_loss, "workers": 0}
    result = ud.simulate(scalar_model(), clients, measures=measures, **(settings | more))
    return result.history


def test_drift_diversity_of_equal_updates_is_one_over_the_cohort() -> None:
    record = simulated(constant_clients(1.0, 1.0, 1.0, 1.0), Drift())[1]
    assert record["drift"]["model"] == pytest.approx(1 / 4, rel=1e-12)
    assert record["drift"]["layers"] == {"0": pytest.approx(1 / 4, rel=1e-12)}


def test_drift_diversity_by_hand() -> None:
    # One full-batch step from w = 0 at rate 1/4: m_i = t_i / 2. (1 + 9)/4 over (1 + 3)^2/4 = 10/16.
    assert simulated(constant_clients(1.0, 3.0), Drift())[1]["drift"]["model"] == pytest.approx(10 / 16)


def test_updates_that_cancel_have_no_diversity_and_no_cosine() -> None:
    record = simulated(constant_clients(1.0, -1.0), Drift(), Updates())[1]
    assert record["drift"] == {"model": None, "layers": {"0": None}}
    assert record["updates"] == {"cosine": None, "norm": 0.5, "norm_min": 0.5, "norm_max": 0.5}
    json.dumps(record, allow_nan=False)


def test_cosine_and_norms_by_hand() -> None:
    # m = (1, 1, -1)/2 * (1, 3, 1): the mean points up, so cosines are 1, 1, -1.
    record = simulated(constant_clients(1.0, 3.0, -1.0), Updates())[1]["updates"]
    assert record["cosine"] == pytest.approx(1 / 3)
    assert (record["norm"], record["norm_min"], record["norm_max"]) == pytest.approx((2.5 / 3, 0.5, 1.5))


def test_cosine_with_two_dimensions_and_sample_weights() -> None:
    class At:
        class work:  # noqa: N801
            class plan:  # noqa: N801
                eval_every, rounds = 1, 1

    class Out:
        def __init__(self, *delta: float) -> None:
            self.delta = torch.tensor(delta)

    measure = Updates()
    measure.begin(At())  # type: ignore[arg-type]
    measure.observe(1, Out(1.0, 0.0), 3.0, torch.zeros(2))  # type: ignore[arg-type]
    measure.observe(1, Out(0.0, 2.0), 2.0, torch.zeros(2))  # type: ignore[arg-type]
    # 3*(1,0) + 2*(0,2) = (3,4): cosines 3/5 and 4/5.
    assert measure.tell(1, None)["updates"]["cosine"] == pytest.approx(0.7)  # type: ignore[arg-type]


def test_gradient_dissimilarity_is_zero_for_equal_clients() -> None:
    x = torch.randn(7, 1, generator=torch.Generator().manual_seed(0))
    clients = [(x, 3 * x[:, 0])] * 3
    for record in simulated(clients, GradientMeasure()):
        assert record["gradients"]["G2"] == 0.0


def test_gradient_dissimilarity_by_hand() -> None:
    # At w = 0: grad f_i = -2 t_i = -2, -6; sizes 4, 4: grad F = -4, G^2 = 4. Server target 1: xi^2 = (-2+4)^2 = 4.
    server = constant_clients(1.0)[0]
    record = simulated(constant_clients(1.0, 3.0), GradientMeasure(), server_data=server)[0]["gradients"]
    assert record == pytest.approx({"G2": 4.0, "norm2": 16.0, "xi2": 4.0, "server_norm2": 4.0, "cosine": 1.0})


def test_gradient_dissimilarity_uses_population_weights_for_the_whole_and_1_over_n_for_the_mean() -> None:
    rng = np.random.default_rng(0)
    g, p = rng.standard_normal((5, 8)), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    whole, g2 = dissimilarity((torch.from_numpy(row), weight) for row, weight in zip(g, p, strict=True))
    expected = (p / p.sum()) @ g
    np.testing.assert_allclose(whole.numpy(), expected, rtol=1e-12)
    assert g2 == pytest.approx(np.mean(((g - expected) ** 2).sum(1)), rel=1e-12)


def test_condition_9() -> None:
    # 1 + (1 - L*eta) * 1 > 2 - 2cos  <=>  L*eta < 2 cos.
    angle = math.radians(60)
    at = Gradients(torch.tensor([1.0, 0.0]), 0.0, torch.tensor([math.cos(angle), math.sin(angle)]))
    assert at.helps(1.0, 0.99)
    assert not at.helps(1.0, 1.01)


def test_cka_is_one_for_equal_rotated_and_scaled_features() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((32, 6))
    rotation, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    batches = [torch.from_numpy(part) for part in np.split(x, 4)]
    turned = [torch.from_numpy(part @ rotation * 3 + 7) for part in np.split(x, 4)]
    assert cka(batches, batches) == pytest.approx(1.0, abs=1e-12)
    assert cka(batches, turned) == pytest.approx(1.0, abs=1e-12)
    assert cka(batches, [torch.ones(8, 3)] * 4) is None


def test_cka_is_about_zero_for_unrelated_features() -> None:
    rng = np.random.default_rng(2)
    a, b = ([torch.from_numpy(rng.standard_normal((64, 40))) for _ in range(20)] for _ in range(2))
    assert cka(a, b) == pytest.approx(0.0, abs=0.02)


def test_kernel_products_are_the_unbiased_hsic() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((9, 4)), rng.standard_normal((9, 3))
    m, one = 9, np.ones(9)
    K, L = x @ x.T, y @ y.T
    np.fill_diagonal(K, 0)
    np.fill_diagonal(L, 0)
    hsic = np.trace(K @ L) + one @ K @ one * (one @ L @ one) / ((m - 1) * (m - 2)) - 2 / (m - 2) * (one @ K @ L @ one)
    found = (centred_kernel(torch.from_numpy(x)) * centred_kernel(torch.from_numpy(y))).sum()
    assert float(found) == pytest.approx(hsic)


def test_skew_by_hand() -> None:
    alike = skew_of(np.array([[5, 5], [50, 50]]))
    assert (alike.emd, alike.entropy) == pytest.approx((0.0, math.log(2)))
    apart = skew_of(np.array([[6, 0], [0, 6]]))
    assert (apart.entropy, apart.entropy_pooled, apart.emd, apart.emd_max) == pytest.approx((0, math.log(2), 0.5, 0.5))
    # Pooled (3/4, 1/4); clients (1, 0) and (1/2, 1/2), both 1/4 away.
    assert skew_of(np.array([[4, 0], [2, 2]])).emd == pytest.approx(0.25)


def test_accuracy_of_classes_and_clients_by_hand() -> None:
    layer = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    east, north = torch.tensor([[1.0, 0.0]] * 2), torch.tensor([[0.0, 1.0]] * 2)
    clients = [(east, torch.tensor([0, 0])), (north, torch.tensor([1, 0]))]
    test = (torch.cat([east, north]), torch.tensor([0, 1, 1, 1]))
    result = ud.simulate(
        nn.Sequential(layer),
        clients,
        rounds=0,
        test_data=test,
        workers=0,
        measures=[ClassAccuracy(), ClientAccuracy(), SkewMeasure()],
    )
    record = result.history[0]
    assert record["classes"] == [1.0, pytest.approx(2 / 3), None]
    assert record["clients"] == {"mean": 0.75, "min": 0.5, "std": 0.25, "each": [1.0, 0.5]}
    assert record["skew"]["emd"] == pytest.approx(0.25)


def digits(**measure: Any) -> dict[str, Any]:
    return {
        "data": {"name": "digits"},
        "partition": {"scheme": "dirichlet", "alpha": 0.3, "clients": 6},
        "server_data": {"source": "balanced", "size": 30},
        "model": {"name": "mlp", "hidden": [16]},
        "algorithm": {"name": "fedpvr+fsl"},
        "train": {"rounds": 4, "cohort": 4, "batch_size": 20, "lr": 0.1},
        "engine": {"workers": 0},
        "measure": measure,
    }


@pytest.mark.parametrize("algorithm", ["fedpvr+fsl", "fedavg", "minibatch-sfl", "sfl-v2"])
def test_measures_leave_the_bits_of_a_run_unchanged(tmp_path: Path, algorithm: str) -> None:
    off = digits() | {"algorithm": {"name": algorithm}}
    run_config(parse(off), tmp_path / "off")
    on = run_config(parse(off | {"measure": ALL}), tmp_path / "on")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("off", "on")]
    assert files[0] == files[1]
    assert on.history[2].keys() >= {"drift", "updates", "cka", "gradients", "classes", "clients"}


def test_measures_leave_bits_unchanged_with_dropout_buffers_and_processes(tmp_path: Path) -> None:
    base = digits() | {"engine": {"workers": 2}}
    base["model"] = {"name": "resnet8"}
    base["data"] = {"name": "digits", "limit": 120}
    base["train"] = base["train"] | {"rounds": 2, "cohort": 3}
    run_config(parse(base), tmp_path / "off")
    run_config(parse(base | {"measure": ALL}), tmp_path / "on")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("off", "on")]
    assert files[0] == files[1]


def test_nothing_is_made_of_what_is_switched_off() -> None:
    assert chosen(parse(digits()).measure) == ()


def test_measures_come_every_so_many_evaluated_rounds() -> None:
    settings = digits(drift=True, skew=True, every=2)
    history = run_config(parse(settings), None).history
    assert [record["round"] for record in history if "drift" in record] == [2, 4]
    assert [record["round"] for record in history if "skew" in record] == [0]
    assert set(history[2]["drift"]["layers"]) == {"dense1", "dense2"}


def test_cka_of_chosen_layers_lies_below_one_and_unknown_layers_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    record = run_config(parse(digits(cka=["dense2"])), None).history[-1]["cka"]
    assert set(record) == {"dense2"}
    assert 0 < record["dense2"]["min"] <= record["dense2"]["mean"] < 1
    with pytest.raises(ud.ConfigError, match=r"no layer 'dense9'; the model has dense1, dense2"):
        run_config(parse(digits(cka=["dense9"])), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_measures_without_what_they_need_are_refused() -> None:
    clients = constant_clients(1.0, 2.0)
    with pytest.raises(ud.ConfigError, match=r"measure\.cka: there is no test data"):
        simulated(clients, Cka())
    with pytest.raises(ud.ConfigError, match=r"measure\.clients: needs class labels"):
        simulated(clients, ClientAccuracy())
