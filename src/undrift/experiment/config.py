"""The configuration of a run: a TOML file, checked key by key."""

from __future__ import annotations

import inspect
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from undrift.core.files import read_toml
from undrift.core.plugins import look_in, place_of, places_in
from undrift.core.words import nearest
from undrift.data import NAMES, SCHEMES, SOURCES
from undrift.errors import ConfigError, UnreadableError
from undrift.models import names as model_names
from undrift.rounds.plan import (
    LARGEST,
    Count,
    NotNegative,
    Precision,
    Rate,
    Section,
    Train,
    explain,
    fits_32_bits,
    shown,
)
from undrift.rules import RULES, attack, key_of, maker_of, named, parts_of
from undrift.rules.chain import Chain, chain
from undrift.tasks import TASKS
from undrift.tasks.fit import AUTO


class DataConfig(Section):
    """``[data]``: which data set."""

    name: str = "digits"
    path: str | None = None
    root: str | None = None
    split: str = "balanced"
    classes: Count | None = None
    limit: Count | None = None
    augment: Literal["none", "flip-crop"] = "none"
    validation: float = Field(default=0.0, ge=0, lt=1)
    samples: Count = Field(default=10_000, description="synthetic: how many training samples")
    features: Count = Field(default=60, description="synthetic: how many inputs")
    heterogeneity: NotNegative = Field(default=1.0, description="synthetic: 0 = clients alike")
    label: str | None = Field(default=None, description="csv: the column of the target")
    client: str | None = Field(default=None, description="csv: the column that says whose row it is")
    test_path: str | None = Field(default=None, description="csv: another file with the test rows")
    test_share: float = Field(default=0.2, gt=0, lt=1, description="csv, images: share of samples drawn for testing")
    standardise: bool = Field(default=True, description="csv: columns with mean 0 and deviation 1")
    size: int | None = Field(default=None, ge=1, le=4096, description="images: width and height all are brought to")
    arguments: dict[str, Any] = Field(default={}, description="of a function of one's own")


class PartitionConfig(Section):
    """``[partition]``: which client has which samples."""

    scheme: str = "iid"
    clients: Count | None = None
    alpha: Rate | None = None
    classes: Count | None = None
    shards: Count | None = None
    ratio: float | None = Field(default=None, ge=0, le=1)
    min_samples: Count = 10
    file: str | None = None
    test: float = Field(default=0.0, ge=0, lt=1, description="share of every client's data that it is tested on")
    seed: int | None = Field(default=None, ge=0, lt=2**63)


class ServerDataConfig(Section):
    """``[server_data]``: the server's own data ``D_0``."""

    source: str = "balanced"
    size: Count | None = None
    contributors: Count | None = None
    samples: Count | None = None
    path: str | None = None
    exclusive: bool = False


class ModelConfig(Section):
    """``[model]``: the network."""

    name: str = "mlp"
    norm: Literal["batch", "group"] = "batch"
    width: float = Field(default=1.0, gt=0, le=1000)
    hidden: list[Annotated[int, Field(ge=1, le=10**7)]] = Field(default=[200], max_length=1000)
    initialisation: Literal["torch", "glorot"] = "torch"
    init: str | None = None
    arguments: dict[str, Any] = Field(default={}, description="of a model of one's own")


class TaskConfig(Section):
    """``[task]``: what is learnt, and how it is scored."""

    name: str = "auto"
    loss: str | None = Field(default=None, description="package.module:name, instead of the task's own")
    metrics: list[str] | dict[str, str | dict[str, Any]] = Field(default=[])
    monitor: str | None = None


class LogConfig(Section):
    """``[log]``: where evaluation records also go."""

    tensorboard: bool = False
    mlflow: str | None = Field(default=None, description="where MLflow keeps its runs: a folder or an address")
    wandb: str | None = Field(default=None, description="a project of Weights & Biases")


class AttackConfig(Section):
    """``[attack]``: for experiments, a share of the clients misbehaves."""

    kind: Literal["sign-flip", "noise", "label-flip"] = "sign-flip"
    share: float = Field(default=0.2, ge=0, le=1)
    scale: float = Field(default=1.0, gt=0)


class EngineConfig(Section):
    """``[engine]``: what carries the run out; nothing here but ``precision`` changes a result."""

    name: Literal["local", "ray", "flower"] = "local"
    workers: int | None = Field(default=None, ge=0, le=10_000)
    precision: Precision = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    address: str | None = None
    cpus_per_worker: float = Field(default=1.0, gt=0, le=10_000)
    gpus_per_worker: float = Field(default=0.0, ge=0, le=10_000)
    checkpoint_seconds: float = Field(default=10.0, ge=0, le=1e9)
    min_sites: Count = 1
    round_timeout: float = Field(default=600.0, gt=0, le=1e6)
    most_samples: Count = Field(default=10_000_000, description="flower: a site that says it has more is refused")
    max_norm: Rate | None = Field(default=None, description="flower: a larger update makes its site lost")
    federation: str | None = None
    timeout: float = Field(
        default=300.0,
        ge=0.1,
        le=1e6,
        description="local: replace a worker that has work and computes nothing for so long",
    )


class MeasureConfig(Section):
    """``[measure]``: what is measured along the way."""

    targets: list[float] = Field(default=[])
    every: Count = 1
    drift: bool = False
    updates: bool = False
    cka: bool | list[str] = False
    cka_samples: int = Field(default=256, ge=4, le=LARGEST)
    gradients: bool = False
    classes: bool = False
    clients: bool = False
    skew: bool = False
    split_variance: bool = False


class Config(Section):
    """A whole configuration."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    server_data: ServerDataConfig | None = None
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    algorithm: dict[str, Any] = Field(default={"name": "fedavg"})
    attack: AttackConfig | None = None
    train: Train = Train()
    engine: EngineConfig = EngineConfig()
    measure: MeasureConfig = MeasureConfig()
    log: LogConfig = LogConfig()
    modules: str | None = Field(default=None, description="folder where modules of one's own are looked for")

    @property
    def partition_seed(self) -> int:
        """What the federation is drawn from; by default the seed of the training."""
        return self.seed if self.partition.seed is None else self.partition.seed

    def rule(self) -> Chain:
        """The algorithm, and who works against it."""
        rule = named(self.algorithm["name"], {k: v for k, v in self.algorithm.items() if k != "name"})
        return rule if self.attack is None else chain(attack(**dict(self.attack)), rule)

    def with_(self, *changes: tuple[str, Any]) -> Config:
        """The same configuration with other values under some dotted keys."""
        settings = self.model_dump(exclude_none=True, exclude_unset=True)
        own = {key_of(part) for part in parts_of(self.algorithm["name"])} - RULES.keys()
        for key, value in changes:
            _put(settings, key, value)
        used = {key_of(part) for part in parts_of(str(settings.get("algorithm", self.algorithm).get("name", "fedavg")))}
        for key in own - used:  # parameters of a rule of one's own that is not asked for any more
            settings.get("algorithm", {}).pop(key, None)
        return parse(settings)

    def complete(self) -> dict[str, Any]:
        """Everything, defaults filled in, ready for TOML; only the used algorithms' parameters."""
        settings = self.model_dump(exclude_none=True)
        settings["train"]["milestones"] = list(self.train.milestones)
        settings["partition"]["seed"] = self.partition_seed
        parts = parts_of(self.algorithm["name"])
        settings["algorithm"] = {"name": self.algorithm["name"]}
        for part in parts:
            given = dict(self.algorithm.get(key_of(part), {}))
            defaults = {k: p.default for k, p in _parameters(part).items() if p.default is not p.empty}
            full = {k: _plain(v) for k, v in (defaults | given).items() if v is not None}
            if full:
                settings["algorithm"][key_of(part)] = full
        return settings


def read(path: Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a file, with ``KEY=VALUE`` overrides; paths in it are relative to the file."""
    try:
        settings = read_toml(path)
    except UnreadableError as error:
        raise ConfigError(f"configuration {error}") from None
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {override}: KEY=VALUE is expected, as in train.lr=0.05")
        _put(settings, key, toml_value(value))
    _resolve_paths(settings, path.parent)
    try:
        if any("://" not in place for place in places_in(settings)):
            settings.setdefault("modules", str(path.parent.absolute()))
    except RecursionError:
        raise ConfigError(f"configuration {path}: nested too deeply") from None
    return parse(settings)


def parse(settings: Mapping[str, Any]) -> Config:
    """Check settings; an error names the key, the value and what is allowed."""
    try:
        config = Config.model_validate(_numbers(dict(settings)))
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None
    except RecursionError:
        raise ConfigError("the configuration is nested too deeply") from None
    except OverflowError as error:
        raise ConfigError(f"a number in the configuration is too large ({error})") from None
    if config.modules is not None:
        look_in(config.modules)
    _check_choices(config)
    _check_algorithm(config.algorithm)
    return config


def toml_value(text: str) -> Any:
    """A value as it would stand in TOML; what is none is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for name in path:
        if not isinstance(settings.setdefault(name, {}), dict):
            raise ConfigError(f"{key}: {name!r} is not a section")
        settings = settings[name]
    settings[last] = value


def _resolve_paths(settings: dict[str, Any], base: Path) -> None:
    for section, key in (
        ("data", "path"),
        ("data", "test_path"),
        ("data", "root"),
        ("partition", "file"),
        ("server_data", "path"),
        ("model", "init"),
        ("engine", "federation"),
    ):
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


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] != "extra_forbidden":
        return explain(error)
    words = [str(part) for part in first["loc"]]
    section: Any = Config
    for word in words[:-1]:
        section = _section_of(section.model_fields[word].annotation)
    return f"unknown key {'.'.join(words)!r}: {nearest(words[-1], section.model_fields)}"


def _check_choices(config: Config) -> None:
    for key, value, known in (
        ("data.name", config.data.name, NAMES),
        ("partition.scheme", config.partition.scheme, SCHEMES),
        ("server_data.source", config.server_data.source if config.server_data else "balanced", SOURCES),
        ("model.name", config.model.name, model_names()),
        ("task.name", config.task.name, (AUTO, *TASKS)),
    ):
        takes_own = key in ("data.name", "model.name", "task.name")
        if value not in known and not (takes_own and place_of(value)):
            raise ConfigError(f"{key} = {shown(value)}: {nearest(value[:60], known)}")


def _parameters(part: str) -> dict[str, inspect.Parameter]:
    """What can be set of an algorithm, one of ours or a user's own."""
    if part == "fedavg":
        return {}
    try:
        return dict(inspect.signature(maker_of(part)).parameters)
    except (TypeError, ValueError):
        return {}


def _check_algorithm(algorithm: dict[str, Any]) -> None:
    name = algorithm.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"algorithm.name = {shown(name)}: a name is needed, one of {', '.join(RULES)}")
    makers = {key_of(part): (part, maker_of(part, f"algorithm.name = {shown(name)}")) for part in parts_of(name)}
    for key, given in algorithm.items():
        if key == "name":
            continue
        if key not in RULES and key not in makers:
            raise ConfigError(f"unknown key 'algorithm.{key}': {nearest(key, ['name', *makers, *RULES])}")
        if not isinstance(given, dict):
            raise ConfigError(f"algorithm.{key} = {shown(given)}: a section [algorithm.{key}] is expected")
        part, maker = makers.get(key, (key, RULES.get(key)))
        _check_parameters(part, key, maker, given)


def _check_parameters(part: str, section: str, maker: Any, given: dict[str, Any]) -> None:
    known = _parameters(part)
    hints = typing.get_type_hints(maker) if part in RULES else {}
    for key, value in given.items():
        if key not in known:
            hint = nearest(key, known) if known else f"{section} has no parameters"
            raise ConfigError(f"unknown key 'algorithm.{section}.{key}': {hint}")
        if key not in hints:
            continue  # a user's own rule checks its parameters itself
        if isinstance(value, bool) and bool not in (hints[key], *typing.get_args(hints[key])):
            raise ConfigError(f"algorithm.{section}.{key} = {value}: not a boolean")
        try:
            given[key] = TypeAdapter(hints[key], config=ConfigDict(allow_inf_nan=False)).validate_python(value)
            _refuse_extreme(given[key])
        except ValidationError as error:
            reasons = sorted({str(e["msg"]) for e in error.errors()})
            raise ConfigError(f"algorithm.{section}.{key} = {shown(value)}: {' or '.join(reasons)}") from None
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"algorithm.{section}.{key} = {shown(value)}: {error}") from None


def _refuse_extreme(value: Any) -> None:
    """An algorithm's numbers are used as 32-bit ones, and its counts are counts."""
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, float):
            fits_32_bits(abs(number))
        elif isinstance(number, int) and abs(number) > LARGEST:
            raise ValueError(f"at most {LARGEST}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
