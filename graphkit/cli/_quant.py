"""Options of quantization, which `quantize` and `convert` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _shared
from graphkit.cli._command import option
from graphkit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphkit.cli._places import Places
    from graphkit.model import Model
    from graphkit.quant.calibration import Calibration
    from graphkit.quant.options import Method, QuantizeOptions
    from graphkit.quantizing import Data, Job

_SECTION = "Quantization"
_AIMS = ("budget", "max_error", "min_metric")
# Options that do nothing without one of others.
_NEEDS_BITS = (
    "block", "method", "damping", "act_order", "asymmetric", "layers", "skip", "no_embeddings", "half_scales",
    "save_plan", "calib",
)  # fmt: skip
_NEEDS_CALIB = ("calib_limit", "tokenizer", "images")
_NEEDS_AIM = ("metric", "choose", "executor", "no_cache")
_METRIC, _CHOOSE = "relative-l2", "3,4,5,6,8"

quant_options = _shared.combined(
    option("--bits", type=int, metavar="N", section=_SECTION, help="Bits of a weight, 2 to 8."),
    option(
        "--block",
        type=int,
        metavar="N",
        section=_SECTION,
        help="Input channels that share a scale, a multiple of 16; 0, the default: one scale an output channel.",
    ),
    option(
        "--method",
        type=click.Choice(["rtn", "mse", "gptq"]),
        section=_SECTION,
        help="rtn rounds as MNN does, mse finds better scales, gptq uses data. Default: gptq with --calib, else mse.",
    ),
    option(
        "--damping",
        type=_shared.Finite(min=0),
        metavar="D",
        section=_SECTION,
        help="Of gptq: part of the mean of the Hessian's diagonal. Default: chosen on data held back.",
    ),
    option("--act-order", is_flag=True, section=_SECTION, help="gptq takes columns by their importance."),
    option("--asymmetric", is_flag=True, section=_SECTION, help="Zero points too; with rtn only."),
    option(
        "--layers",
        multiple=True,
        metavar="PATTERN=BITS",
        section=_SECTION,
        help="Exceptions: '*.lm_head=8,*.down_proj=6b64:gptq,head=float'. May be repeated.",
    ),
    option("--skip", multiple=True, metavar="PATTERN", section=_SECTION, help="Layers that stay float."),
    option("--no-embeddings", is_flag=True, section=_SECTION, help="Tables that Gather reads stay float."),
    option("--half-scales", is_flag=True, section=_SECTION, help="Scales are stored as float16."),
    option("--plan", type=_shared.PATH, metavar="F.json", section=_SECTION, help="Settings from a plan file."),
    option("--save-plan", type=_shared.PATH, metavar="F.json", section=_SECTION, help="Write the plan that was used."),
    option(
        "--calib",
        type=_shared.PATH,
        metavar="F|DIR",
        section=_SECTION,
        help="Calibration data: .npz, .npy, pictures, .txt (a text a line), or a folder of them.",
    ),
    option("--calib-limit", type=click.IntRange(min=1), metavar="N", section=_SECTION, help="At most N samples."),
    option("--tokenizer", type=_shared.PATH, metavar="F", section=_SECTION, help="tokenizer.json for texts."),
    option("--images", metavar="SPEC", section=_SECTION, help="Pictures as numbers: 'size=224,mean=.5,std=.5'."),
    option(
        "--budget",
        metavar="B",
        section="Mixed precision",
        help="Bytes of all weights: 12MB, 60% (of float), '60% of w8'. Bits are then chosen by measured sensitivity.",
    ),
    option("--max-error", type=_shared.Finite(min=0), metavar="E", section="Mixed precision",
           help="The smallest model whose outputs are no further off."),
    option("--min-metric", type=_shared.Finite(max=1), metavar="M", section="Mixed precision",
           help="The same with 1 − error: the least cosine with --metric cosine."),
    option("--metric", metavar="M", section="Mixed precision",
           help=f"relative-l2, cosine, or a function: file.py:name. Default: {_METRIC}."),
    option("--choose", metavar="BITS", section="Mixed precision", help=f"Bits to choose from. Default: {_CHOOSE}."),
    option("--executor", metavar="WHERE", section="Mixed precision",
           help="Where trials run: processes (default), processes:4, threads, tcp://host:8786 (dask)."),
    option("--no-cache", is_flag=True, section="Mixed precision", help="Measure anew what was measured before."),
)  # fmt: skip


def wanted(given: dict[str, Any], *, fp16: bool = False) -> bool:
    """True when quantization is asked for. Raises UsageError for its options without --bits, --plan or an aim.

    Calibration data alone serve the forecast of --fp16.
    """
    if any(given[name] is not None for name in ("bits", "plan", *_AIMS)):
        return True
    _refuse_lonely(
        given, [name for name in _NEEDS_BITS if not (fp16 and name == "calib")], "--bits, --plan or --budget"
    )
    _check_company(given)
    return False


def _check_company(given: dict[str, Any]) -> None:
    """Raise UsageError for options that do nothing for lack of another."""
    if given["calib"] is None:
        _refuse_lonely(given, _NEEDS_CALIB, "--calib")
    if all(given[name] is None for name in _AIMS):
        _refuse_lonely(given, _NEEDS_AIM, "--budget, --max-error or --min-metric")


def _refuse_lonely(given: dict[str, Any], names: Sequence[str], company: str) -> None:
    lonely = next((name for name in names if given[name]), None)
    if lonely is not None:
        raise UsageError(f"--{lonely.replace('_', '-')} works with {company}")


def job(given: dict[str, Any], progress: Callable[[int, int, str], None]) -> Job:
    """What the options ask for. Raises UsageError."""
    from graphkit.quant.options import QuantizeOptions, parse_layers
    from graphkit.quant.plan import read_plan
    from graphkit.quantizing import Job

    _check_company(given)
    data = _data(given)
    default: Method = "rtn" if given["asymmetric"] else "gptq" if data is not None else "mse"
    options = QuantizeOptions(
        bits=8 if given["bits"] is None else given["bits"],
        block=given["block"] or 0,
        method=given["method"] or default,
        symmetric=not given["asymmetric"],
        scales="float16" if given["half_scales"] else "float32",
        layers=parse_layers(given["layers"]),
        skip=tuple(given["skip"]),
        embeddings=not given["no_embeddings"],
        damping=given["damping"],
        act_order=given["act_order"],
    )
    plan = None if given["plan"] is None else read_plan(given["plan"])
    _check_gptq(given, options, plan is not None)
    return Job(options, plan, _search(given, progress), data)


def _check_gptq(given: dict[str, Any], options: QuantizeOptions, planned: bool) -> None:
    """Raise UsageError for options of gptq when no layer has that method."""
    lonely = next(
        (flag for flag, name in (("--damping", "damping"), ("--act-order", "act_order")) if given[name]), None
    )
    if lonely and not planned and "gptq" not in (options.method, *(layer.method for layer in options.layers)):
        raise UsageError(f"{lonely} is of the method gptq, not of {options.method}", hint="give --calib")


def calibration(given: dict[str, Any], model: Model) -> Calibration | None:
    """The calibration data for a model, None when none are given. Raises UsageError."""
    data = _data(given)
    return None if data is None else data.load(model)


def _data(given: dict[str, Any]) -> Data | None:
    from graphkit.quantizing import Data

    if given["calib"] is None:
        return None
    return Data(given["calib"], given["tokenizer"], given["images"], given["calib_limit"])


def _search(given: dict[str, Any], progress: Callable[[int, int, str], None]) -> Any:
    aims = {name: given[name] for name in _AIMS if given[name] is not None}
    if not aims:
        return None
    from graphkit.quant.budget import parse_budget
    from graphkit.quant.cache import Cache
    from graphkit.quant.metric import Metric
    from graphkit.quant.search import Search

    if "budget" in aims:
        aims["budget"] = parse_budget(aims["budget"])
    return Search(
        **aims,
        bits=_bits(given["choose"] or _CHOOSE),
        metric=Metric.parse(given["metric"] or _METRIC),
        executor=given["executor"],
        cache=None if given["no_cache"] else Cache.default(),
        progress=progress,
    )


def _bits(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--choose takes bits with commas between: 3,4,8, not '{text}'") from None


def note_places(places: Places, given: dict[str, Any]) -> None:
    """What quantization reads and writes."""
    places.read(*(given[name] for name in ("calib", "tokenizer", "plan") if given[name] and Path(given[name]).exists()))
    if given["save_plan"] is not None:
        places.write(given["save_plan"], "--save-plan")
