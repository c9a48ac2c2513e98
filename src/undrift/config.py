"""The configuration of a run: a TOML file, checked key by key."""

from __future__ import annotations

import difflib
import inspect
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from undrift.data import NAMES, SCHEMES, SOURCES
from undrift.errors import ConfigError
from undrift.models import names as model_names
from undrift.rule import Chain
from undrift.rules import RULES, named
from undrift.schedule import Kind


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(_Section):
    """``[data]``: which data set."""

    name: str = "digits"
    path: str | None = None
    root: str | None = None
    split: str = "balanced"
    classes: int | None = Field(default=None, ge=1)
    limit: int | None = Field(default=None, ge=1)
    augment: Literal["none", "flip-crop"] = "none"
    validation: float = Field(default=0.0, ge=0, lt=1)
    samples: int = Field(default=10_000, ge=1, description="synthetic: how many training samples")
    features: int = Field(default=60, ge=1, description="synthetic: how many inputs")
    heterogeneity: float = Field(default=1.0, ge=0, description="synthetic: 0 = clients alike")


class PartitionConfig(_Section):
    """``[partition]``: which client has which samples."""

    scheme: str = "iid"
    clients: int | None = Field(default=None, ge=1)
    alpha: float | None = Field(default=None, gt=0)
    classes: int | None = Field(default=None, ge=1)
    shards: int | None = Field(default=None, ge=1)
    ratio: float | None = Field(default=None, ge=0, le=1)
    min_samples: int = Field(default=10, ge=1)
    file: str | None = None
    seed: int | None = Field(default=None, ge=0)


class ServerDataConfig(_Section):
    """``[server_data]``: the server's own data ``D_0``."""

    source: str = "balanced"
    size: int | None = Field(default=None, ge=1)
    contributors: int | None = Field(default=None, ge=1)
    samples: int | None = Field(default=None, ge=1)
    path: str | None = None
    exclusive: bool = False


class ModelConfig(_Section):
    """``[model]``: the network."""

    name: str = "mlp"
    norm: Literal["batch", "group"] = "batch"
    width: float = Field(default=1.0, gt=0)
    hidden: list[int] = [200]
    initialisation: Literal["torch", "glorot"] = "torch"
    init: str | None = None


class TrainConfig(_Section):
    """``[train]``: what is the same for every algorithm."""

    rounds: int = Field(default=100, ge=0)
    cohort: int | None = Field(default=None, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    local_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=50, ge=0)
    lr: float = Field(default=0.01, gt=0)
    server_lr: float | Literal["sqrt"] = 1.0
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Kind = "constant"
    lr_min: float | None = Field(default=None, gt=0)
    milestones: list[int] = []
    decay: float = Field(default=0.1, gt=0, le=1)
    pretrain_epochs: int = Field(default=0, ge=0)
    pretrain_lr: float = Field(default=0.01, gt=0)
    weighting: Literal["samples", "uniform"] = "samples"
    eval_every: int = Field(default=1, ge=1)


class EngineConfig(_Section):
    """``[engine]``: what carries the run out; nothing here but ``precision`` changes a result."""

    name: Literal["local", "ray", "flower"] = "local"
    workers: int | None = Field(default=None, ge=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    address: str | None = None
    cpus_per_worker: float = Field(default=1.0, gt=0)
    gpus_per_worker: float = Field(default=0.0, ge=0)
    checkpoint_seconds: float = Field(default=10.0, ge=0)
    min_sites: int = Field(default=1, ge=1)
    round_timeout: float = Field(default=600.0, gt=0)
    federation: str | None = None


class MeasureConfig(_Section):
    """``[measure]``: what is measured along the way."""

    targets: list[float] = []
    every: int = Field(default=1, ge=1)
    drift: bool = False
    updates: bool = False
    cka: bool | list[str] = False
    cka_samples: int = Field(default=256, ge=4)
    gradients: bool = False
    classes: bool = False
    clients: bool = False
    skew: bool = False
    split_variance: bool = False


class Config(_Section):
    """A whole configuration."""

    seed: int = Field(default=0, ge=0)
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    server_data: ServerDataConfig | None = None
    model: ModelConfig = ModelConfig()
    algorithm: dict[str, Any] = {"name": "fedavg"}
    train: TrainConfig = TrainConfig()
    engine: EngineConfig = EngineConfig()
    measure: MeasureConfig = MeasureConfig()

    @property
    def partition_seed(self) -> int:
        """What the federation is drawn from; by default the seed of the training."""
        return self.seed if self.partition.seed is None else self.partition.seed

    def rule(self) -> Chain:
        """The algorithm."""
        return named(self.algorithm["name"], {k: v for k, v in self.algorithm.items() if k != "name"})

    def with_(self, *changes: tuple[str, Any]) -> Config:
        """The same configuration with other values under some dotted keys."""
        settings = self.model_dump(exclude_none=True, exclude_unset=True)
        for key, value in changes:
            _put(settings, key, value)
        return parse(settings)

    def complete(self) -> dict[str, Any]:
        """Everything, defaults filled in, ready for TOML; only the used algorithms' parameters."""
        settings = self.model_dump(exclude_none=True)
        settings["partition"]["seed"] = self.partition_seed
        parts = _parts(self.algorithm["name"])
        settings["algorithm"] = {"name": self.algorithm["name"]}
        for part in parts:
            given = dict(self.algorithm.get(part, {}))
            defaults = {k: p.default for k, p in _parameters(part).items()}
            full = {k: _plain(v) for k, v in (defaults | given).items() if v is not None}
            if full:
                settings["algorithm"][part] = full
        return settings


def read(path: Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a file, with ``KEY=VALUE`` overrides; paths in it are relative to the file."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from None
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {override}: KEY=VALUE is expected, as in train.lr=0.05")
        _put(settings, key, toml_value(value))
    _resolve_paths(settings, path.parent)
    return parse(settings)


def parse(settings: Mapping[str, Any]) -> Config:
    """Check settings; an error names the key, the value and what is allowed."""
    try:
        config = Config.model_validate(_numbers(dict(settings)))
    except ValidationError as error:
        raise ConfigError(_explain(error, settings)) from None
    _check_choices(config)
    _check_algorithm(config.algorithm)
    return config


def toml_value(text: str) -> Any:
    """A value as it would stand in TOML; what is none is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint: the nearest known word, or what there is."""
    choices = list(known)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(choices)}"


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for name in path:
        if not isinstance(settings.setdefault(name, {}), dict):
            raise ConfigError(f"{key}: {name!r} is not a section")
        settings = settings[name]
    settings[last] = value


def _resolve_paths(settings: dict[str, Any], base: Path) -> None:
    for section, key in (("data", "path"), ("data", "root"), ("partition", "file"), ("server_data", "path"),
                         ("model", "init"), ("engine", "federation")):  # fmt: skip
        value = settings.get(section, {}).get(key) if isinstance(settings.get(section, {}), dict) else None
        if isinstance(value, str):
            path = Path(value).expanduser()
            beside = base / path
            settings[section][key] = str((beside if beside.exists() else path).absolute())


def _numbers(value: Any, annotation: Any = None) -> Any:
    """TOML's ``1`` is a fine value for a number that need not be whole."""
    if isinstance(value, dict):
        fields = annotation.model_fields if isinstance(annotation, type) and issubclass(annotation, BaseModel) else {}
        if annotation is None:
            fields = Config.model_fields
        return {k: _numbers(v, _section_of(fields[k].annotation) if k in fields else object) for k, v in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and _takes_float(annotation):
        return float(value)
    if isinstance(value, list) and _takes_float(*typing.get_args(annotation)):
        return [_numbers(item, float) for item in value]
    return value


def _section_of(annotation: Any) -> Any:
    options = [a for a in typing.get_args(annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
    return options[0] if options else annotation


def _takes_float(*annotations: Any) -> bool:
    return any(a is float or float in typing.get_args(a) for a in annotations)


def _explain(error: ValidationError, settings: Mapping[str, Any]) -> str:
    first = error.errors()[0]
    loc = [str(part) for part in first["loc"] if not (isinstance(part, str) and "[" in part)]
    section: Any = Config
    for part in loc[:-1]:
        field = section.model_fields.get(part) if hasattr(section, "model_fields") else None
        section = _section_of(field.annotation) if field else None
    key = ".".join(loc)
    if first["type"] == "extra_forbidden":
        known = section.model_fields if hasattr(section, "model_fields") else Config.model_fields
        return f"unknown key {key!r}: {nearest(loc[-1], known)}"
    messages = {
        str(e["msg"])[0].lower() + str(e["msg"])[1:] for e in error.errors() if e["loc"][:2] == first["loc"][:2]
    }
    if loc and loc[-1] in ("float", "int", "str", "literal", "list"):
        key = ".".join(loc[:-1])
    return f"{key} = {_shown(first['input'])}: {' or '.join(sorted(messages))}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def _check_choices(config: Config) -> None:
    if isinstance(config.train.server_lr, float) and config.train.server_lr <= 0:
        raise ConfigError(f'train.server_lr = {config.train.server_lr}: a number above 0, or "sqrt", is allowed')
    for key, value, known in (
        ("data.name", config.data.name, NAMES),
        ("partition.scheme", config.partition.scheme, SCHEMES),
        ("server_data.source", config.server_data.source if config.server_data else "balanced", SOURCES),
        ("model.name", config.model.name, model_names()),
    ):
        if value not in known:
            raise ConfigError(f"{key} = {value!r}: {nearest(value, known)}")


def _parts(name: str) -> list[str]:
    return [part for piece in name.split("+") for part in (["ds", "fsl"] if piece == "dsl" else [piece])]


def _parameters(part: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(RULES[part]).parameters) if part != "fedavg" else {}


def _check_algorithm(algorithm: dict[str, Any]) -> None:
    name = algorithm.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"algorithm.name = {name!r}: a name is needed, one of {', '.join(RULES)}")
    for part in _parts(name):
        if part not in RULES:
            raise ConfigError(f"algorithm.name = {name!r}: no algorithm {part!r}; {nearest(part, RULES)}")
    for part, given in algorithm.items():
        if part == "name":
            continue
        if part not in RULES:
            raise ConfigError(f"unknown key 'algorithm.{part}': {nearest(part, ['name', *RULES])}")
        if not isinstance(given, dict):
            raise ConfigError(f"algorithm.{part} = {given!r}: a section [algorithm.{part}] is expected")
        _check_parameters(part, given)


def _check_parameters(part: str, given: dict[str, Any]) -> None:
    known = _parameters(part)
    maker = RULES[part]
    hints = typing.get_type_hints(maker)
    for key, value in given.items():
        if key not in known:
            hint = nearest(key, known) if known else f"{part} has no parameters"
            raise ConfigError(f"unknown key 'algorithm.{part}.{key}': {hint}")
        if isinstance(value, bool) and bool not in (hints[key], *typing.get_args(hints[key])):
            raise ConfigError(f"algorithm.{part}.{key} = {value}: not a boolean")
        try:
            given[key] = TypeAdapter(hints[key], config=ConfigDict(allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            reasons = sorted({str(e["msg"]) for e in error.errors()})
            raise ConfigError(f"algorithm.{part}.{key} = {_shown(value)}: {' or '.join(reasons)}") from None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
