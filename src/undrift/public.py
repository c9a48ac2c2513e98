"""What ``import undrift`` offers; the package itself imports this module when a name of it is first asked for."""

from undrift.core.version import VERSION
from undrift.data.federation import Federation, from_clients
from undrift.errors import ConfigError, DataError, DivergedError, InputError, RunError, UndriftError
from undrift.experiment import callbacks
from undrift.experiment.cuts import cut_table
from undrift.experiment.simulate import simulate
from undrift.rounds.loop import Result
from undrift.rules import (
    Centralised,
    Choice,
    Clip,
    Dp,
    Ds,
    FedAdc,
    FedDyn,
    FedOpt,
    FedProx,
    Fsl,
    Krum,
    Median,
    MiniBatchSfl,
    Moon,
    Scaffold,
    SflV1,
    SflV2,
    SlowMo,
    TopK,
    Trimmed,
    algorithm,
    attack,
    fedavgm,
    fednova,
    fedpvr,
    personal,
    quantise,
)
from undrift.rules.chain import Chain, chain
from undrift.rules.masked import masked
from undrift.rules.rule import ClientAt, DrawAt, FedAvg, Owns, Rule, ServerAt

__version__ = VERSION

fedavg = FedAvg
fedprox = FedProx
scaffold = Scaffold
feddyn = FedDyn
slowmo = SlowMo
fedadc = FedAdc
fsl = Fsl
ds = Ds
centralised = Centralised
fedopt = FedOpt
moon = Moon
dp = Dp
topk = TopK
median = Median
trimmed = Trimmed
krum = Krum
clip = Clip
choice = Choice
sfl_v1 = SflV1
sfl_v2 = SflV2
minibatch_sfl = MiniBatchSfl


def dsl(share: float = 1.0, **server_learning: object) -> Chain:
    """Data sharing with server learning: ``ds(share) + fsl(**server_learning)``."""
    return Ds(share) + Fsl(**server_learning)  # type: ignore[arg-type]


__all__ = [
    "Chain",
    "ClientAt",
    "ConfigError",
    "DataError",
    "DivergedError",
    "DrawAt",
    "FedAvg",
    "Federation",
    "InputError",
    "Owns",
    "Result",
    "Rule",
    "RunError",
    "ServerAt",
    "UndriftError",
    "__version__",
    "algorithm",
    "attack",
    "callbacks",
    "centralised",
    "chain",
    "choice",
    "clip",
    "cut_table",
    "dp",
    "ds",
    "dsl",
    "fedadc",
    "fedavg",
    "fedavgm",
    "feddyn",
    "fednova",
    "fedopt",
    "fedprox",
    "fedpvr",
    "from_clients",
    "fsl",
    "krum",
    "masked",
    "median",
    "minibatch_sfl",
    "moon",
    "personal",
    "quantise",
    "scaffold",
    "sfl_v1",
    "sfl_v2",
    "simulate",
    "slowmo",
    "topk",
    "trimmed",
]
