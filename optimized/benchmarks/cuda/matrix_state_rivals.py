"""Operators of other projects for the cases of matrix_state.py: found by import, timed with the same clock, and only where they find what ours finds.

A rival takes tensors of its own (its leaves), prepared from ours outside its time. `ours` computes our arguments from them, so our operator's values,
last state and gradients of those very leaves are what the rival has to find, each within a tolerance (the norm of the difference over ours).

What a rival cannot do is left out: FlashInfer and FlashKDA have no backward, FlashKDA takes log gates above −5 alone, Mamba-2 scales its values by
its gate. FLA is timed with its own Triton kernels, also where packages are at hand to which it would pass a call on.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import sys
import types
from dataclasses import dataclass, field
from typing import Callable

import torch
from torch.nn.functional import normalize

GATE_BOUND = -5.0  # of FlashKDA's log gates, at most
FLA_OWN = dict.fromkeys(("FLA_FLASH_KDA", "FLA_FLASH_QLA", "FLA_TILELANG"), "0")  # read by FLA at each call


@dataclass(frozen=True)
class Rival:
    """An operator: `call` gets its leaves by name and returns values [B, T, H, V] and the last state, None where it has none; constants have no
    gradient."""
    package: str
    name: str
    call: Callable
    leaves: Callable = lambda given: {name: tensor for name, tensor in given.items() if tensor is not None}
    ours: Callable = lambda leaves: leaves
    backward: bool = field(default=True, kw_only=True)
    constants: tuple = field(default=(), kw_only=True)


# ---- Packages

def bare(package):
    """Makes a package importable without its __init__, which imports extensions and packages that its operators here do without."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}")
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = list(spec.submodule_search_locations)


def version_of(package):
    """Of what is imported: by its metadata, or by its __init__."""
    try:
        return importlib.metadata.version(importlib.metadata.packages_distributions().get(package, [package])[0])
    except importlib.metadata.PackageNotFoundError:
        initial = pathlib.Path(next(iter(sys.modules[package].__path__))) / "__init__.py"
        found = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", initial.read_text(), re.M) if initial.exists() else None
        return found[1] if found else "unknown"


# What is imported of each package: (module, whether without the package's __init__).
MODULES = {"fla": ("fla.ops", False), "mamba_ssm": ("mamba_ssm.ops.triton.ssd_combined", True), "flashinfer": ("flashinfer.gdn_prefill", True),
           "flash_qla": ("flash_qla", False), "flash_kda": ("flash_kda", False), "t2fw": ("t2fw.functional_lfw", False)}


def packages_at_hand(wanted=tuple(MODULES)):
    """({package: version}, {package: why it cannot be imported})"""
    versions, missing = {}, {}
    if "fla" in wanted:
        os.environ.update(FLA_OWN)
    for package in wanted:
        module, without_init = MODULES[package]
        try:
            if without_init:
                bare(package)
            importlib.import_module(module)
            versions[package] = version_of(package)
        except Exception as reason:  # of any kind: extensions fail in many ways
            missing[package] = said(reason)
    return versions, missing


def said(reason):
    return f"{type(reason).__name__}: {' '.join(str(reason).split())[:200]}"


# ---- FLA: module below fla.ops, function, its names of our gates, its other options. No form with a normaliser has one with gates.

SCALAR, RECURRENT = {"key_gate": "g"}, {"key_gate": "gk", "value_gate": "gv"}
FLA = {
    "": [("linear_attn", "chunk_linear_attn", {}, {"normalize": False}), ("linear_attn", "fused_chunk_linear_attn", {}, {"normalize": False})],
    "token": [("simple_gla", "chunk_simple_gla", SCALAR, {}), ("simple_gla", "fused_chunk_simple_gla", SCALAR, {})],
    "key": [("gla", "chunk_gla", SCALAR, {}), ("gla", "chunk_gla", SCALAR, {"state_v_first": True})],
    "key value": [("gla", "fused_recurrent_gla", RECURRENT, {}), ("gla", "fused_recurrent_gla", RECURRENT, {"state_v_first": True})],
    "delta": [("delta_rule", "chunk_delta_rule", {}, {})],
    "delta token": [("gated_delta_rule", "chunk_gated_delta_rule", SCALAR, {}),
                    ("gated_delta_rule", "chunk_gated_delta_rule", SCALAR, {"state_v_first": True})],
    # The second is right for log gates above −5 alone.
    "delta key": [("kda", "chunk_kda", SCALAR, options) for options in ({}, {"safe_gate": True}, {"safe_gate": True, "disable_recompute": True})],
    "token state": [("simple_gla", "fused_recurrent_simple_gla", SCALAR, {})],
}


def scale_of(query):
    return query.shape[-1] ** -0.5


def fla(module, function, gates, options):
    names = {"query": "q", "key": "k", "value": "v", "beta": "beta"} | gates

    def call(leaves):
        state = {"initial_state": leaves["state"], "output_final_state": True} if "state" in leaves else {}
        operator = getattr(importlib.import_module(f"fla.ops.{module}"), function)
        return operator(**{theirs: leaves[mine] for mine, theirs in names.items() if mine in leaves}, **state, **options,
                        scale=scale_of(leaves["query"]))

    return Rival("fla", " ".join([function, *(option for option, on in options.items() if on)]), call)


# ---- mamba-ssm: values of ours are its x times its step, our log gates minus its step, since its A is −1 here; its C is our query with the scale.

def mamba_leaves(given):
    step = -given["key_gate"]
    minus_one = torch.full(step.shape[2:], -1.0, device=step.device)
    x = (given["value"] / step[..., None]).to(given["value"].dtype)
    return {"x": x, "step": step, "A": minus_one, "B": given["key"], "C": given["query"] * scale_of(given["query"])}


def mamba_ours(leaves):
    return {"query": leaves["C"] / scale_of(leaves["C"]), "key": leaves["B"],
            "value": (leaves["x"] * leaves["step"][..., None]).to(leaves["x"].dtype),
            "key_gate": -leaves["step"]}


def mamba(chunk):
    def call(leaves):
        scan = importlib.import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
        return scan(*(leaves[name] for name in ("x", "step", "A", "B", "C")), chunk), None

    return Rival("mamba_ssm", f"mamba_chunk_scan_combined, chunks of {chunk}", call, mamba_leaves, mamba_ours, constants=("A",))


def mamba_step():
    leaves = lambda given: mamba_leaves(given) | {"state": given["state"].transpose(-1, -2).contiguous(),
                                                  "bias": given["state"].new_zeros(given["state"].shape[1])}
    ours = lambda leaves: mamba_ours(leaves) | {"state": leaves["state"].transpose(-1, -2)}

    def call(leaves):
        update = importlib.import_module("mamba_ssm.ops.triton.selective_state_update").selective_state_update
        state, x = leaves["state"], leaves["x"][:, 0]  # the state is overwritten
        step, bias = leaves["step"][:, 0, :, None].expand(x.shape), leaves["bias"][:, None].expand(x.shape[1:])
        minus_one = leaves["A"][:, None, None].expand(state.shape[1:])
        values = update(state, x, step, minus_one, leaves["B"][:, 0], leaves["C"][:, 0], D=bias,
                        dt_bias=bias)  # 2.3.2 raises without D, here of zeros
        return values[:, None], state.transpose(-1, -2)

    return Rival("mamba_ssm", "selective_state_update", call, leaves, ours, backward=False)


# ---- The gated delta rule of FlashInfer and FlashQLA

def flashinfer():
    def leaves(given):
        batch, length = given["query"].shape[:2]
        ends = torch.arange(0, batch * length + 1, length, device=given["query"].device)
        return {"query": given["query"], "key": given["key"], "value": given["value"], "gate": given["key_gate"].exp(), "beta": given["beta"],
                "ends": ends}

    ours = lambda leaves: {name: leaves[name] for name in ("query", "key", "value", "beta")} | {"key_gate": leaves["gate"].log()}

    def call(leaves):
        rule = importlib.import_module("flashinfer.gdn_prefill").chunk_gated_delta_rule
        packed = {name: tensor.flatten(0, 1) for name, tensor in leaves.items() if name != "ends"}
        values = rule(packed["query"], packed["key"], packed["value"], packed["gate"], packed["beta"], scale_of(packed["query"]),
                      cu_seqlens=leaves["ends"])
        return values.view(leaves["value"].shape), None

    return Rival("flashinfer", "chunk_gated_delta_rule", call, leaves, ours, backward=False)


def flash_qla():
    def call(leaves):
        rule = importlib.import_module("flash_qla").chunk_gated_delta_rule
        return rule(leaves["query"], leaves["key"], leaves["value"], leaves["key_gate"], leaves["beta"], scale_of(leaves["query"]))

    return Rival("flash_qla", "chunk_gated_delta_rule", call)


# ---- FlashKDA: logits for gates and β, directions of queries and keys, all inside its kernels. Its sigmoid is approximate: the bound is as near as
# gates allow.

def flash_kda():
    def leaves(given):
        logits = lambda share: torch.logit(share, 1e-6).to(given["query"].dtype)
        zeros = given["query"].new_zeros(given["query"].shape[2:], dtype=torch.float32)
        bound = (1.01 * given["key_gate"].min().cpu()).clamp(min=GATE_BOUND)
        return {"query": given["query"], "key": given["key"], "value": given["value"], "gate": logits(given["key_gate"] / bound.item()),
                "beta": logits(given["beta"]), "log_rate": zeros[:, 0].contiguous(), "bias": zeros, "bound": bound}

    ours = lambda leaves: {"query": normalize(leaves["query"], dim=-1), "key": normalize(leaves["key"], dim=-1), "value": leaves["value"],
                           "key_gate": leaves["bound"].item() * leaves["gate"].float().sigmoid(), "beta": leaves["beta"].float().sigmoid()}

    def call(leaves):
        values = torch.empty_like(leaves["value"])
        taken = (leaves[name] for name in ("query", "key", "value", "gate", "beta"))
        importlib.import_module("flash_kda").fwd(*taken, scale_of(leaves["query"]), values, leaves["log_rate"], leaves["bias"],
                                                 leaves["bound"].item())
        return values, None

    return Rival("flash_kda", "fwd", call, leaves, ours, backward=False)


# ---- T2FW's own CUDA of its decay rule: sequences of one head, gates that are no logs, every state in memory; no bfloat16 and no scale.

def t2fw(dtype):
    rows = {"value": "value", "value_gate": "forget", "query": "query", "key": "key", "key_gate": "key_forget"}

    def leaves(given):
        heads = given["query"].shape[2]
        apart = lambda tensor: tensor.transpose(1, 2).flatten(0, 1).to(dtype).contiguous()
        scaled = given | {"query": given["query"] * scale_of(given["query"])}
        found = {theirs: apart(scaled[mine].exp() if "gate" in mine else scaled[mine]) for mine, theirs in rows.items()}
        return found | {"heads": torch.tensor(heads), "state": found["value"].new_zeros(len(found["value"]), found["value"].shape[-1],
                                                                                        found["query"].shape[-1])}

    def ours(leaves):
        together = lambda tensor: tensor.unflatten(0, (-1, int(leaves["heads"]))).transpose(1, 2)
        found = {mine: together(leaves[theirs]) for mine, theirs in rows.items()}
        return {name: tensor.float().log() if "gate" in name else tensor.to(torch.bfloat16) for name, tensor in found.items()} | {
            "query": (found["query"] / scale_of(found["query"])).to(torch.bfloat16)}

    def call(leaves):
        rule = importlib.import_module("t2fw.functional_lfw").LFWFunction
        values, _ = rule.apply(leaves["value"], leaves["forget"], leaves["query"], leaves["key"], leaves["key_forget"], leaves["state"])
        return values.unflatten(0, (-1, int(leaves["heads"]))).transpose(1, 2), None

    return Rival("t2fw", f"LFWFunction, {str(dtype).removeprefix('torch.')}", call, leaves, ours, constants=("heads", "state"))


OTHERS = {
    "token": [mamba(128), mamba(256)],
    "token state": [mamba_step()],
    "delta token": [flashinfer(), flash_qla()],
    "delta key": [flash_kda()],
    "key value": [t2fw(torch.float16), t2fw(torch.float32)],
}


def rivals_of(form, packages):
    """Of a form's rivals those of the packages."""
    return [rival for rival in [*(fla(*operator) for operator in FLA.get(form, ())), *OTHERS.get(form, ())] if rival.package in packages]


# ---- What is right, and its time

def gradients_of(values, leaves, direction):
    """By name, of the tensors of a dictionary that have one."""
    wanted = {name: tensor for name, tensor in leaves.items() if tensor is not None and tensor.requires_grad}
    return dict(zip(wanted, torch.autograd.grad(values, wanted.values(), direction, retain_graph=True)))


def worst_of(found, expected):
    """The largest error of a tensor by its name, NaN being infinite: (error, name)."""
    of = lambda name: ((found[name].float() - expected[name].float()).norm() / expected[name].float().norm()).nan_to_num(nan=torch.inf).item()
    return max((of(name), name) for name in expected)


def expected_of(run, arguments, leaves, direction):
    """What finds the same as ours, by direction: values, the last state where one is given, and the leaves' gradients where there are any."""
    values, state = run(arguments)
    expected = {"forward": {"values": values.detach(), **({} if arguments.get("state") is None else {"last state": state.detach()})}}
    return expected if direction is None else expected | {"backward": gradients_of(values, leaves, direction)}


def of_rival(rival, given, run, sides, tolerance, clock):
    """(side, row's members or why there is no time) of a rival: `run` is our operator of a dictionary of arguments."""
    with torch.no_grad():
        leaves = {name: tensor.detach().clone() for name, tensor in rival.leaves(given).items()}
    direction = torch.randn_like(given["value"]) if rival.backward and "backward" in sides else None
    for name in leaves.keys() - set(rival.constants) if direction is not None else ():
        leaves[name].requires_grad_()
    with torch.set_grad_enabled(direction is not None):
        expected = expected_of(run, rival.ours(leaves), leaves, direction)
    for side in expected:
        try:
            with torch.set_grad_enabled(side == "backward"):
                values, state = rival.call(leaves)
                towards = None if direction is None else direction.to(values.dtype)
                call = (lambda: rival.call(leaves)) if side == "forward" else (lambda: gradients_of(values, leaves, towards))
                found = {"values": values, "last state": state} if side == "forward" else call()
                error, where = worst_of(found, expected[side])
                if not error <= tolerance:
                    raise ValueError(f"{where}: expected ours within {tolerance:.1%}, found {error:.2%}")
                time = clock(call)
            yield side, {"rival": rival.name, "rival_package": rival.package, "rival_microseconds": time, "rival_error": error,
                         "rival_error_of": where}
        except Exception as reason:  # of any kind: a rival's failure is a result
            yield side, f"{rival.name}: {said(reason)}"


def of_rivals(given, rivals, run, sides, tolerance, clock):
    """By direction: of each package the row's members of its fastest, the fastest first; and why others have no time."""
    fastest, reasons = {side: {} for side in sides}, {side: [] for side in sides}
    for rival in rivals:
        try:
            found = list(of_rival(rival, given, run, sides, tolerance, clock))
        except Exception as reason:  # of what is prepared
            found = [(side, f"{rival.name}: {said(reason)}") for side in sides]
        for side, row in found:
            if isinstance(row, str):
                reasons[side].append(row)
            elif row["rival_microseconds"] < fastest[side].get(rival.package, {}).get("rival_microseconds", float("inf")):
                fastest[side][rival.package] = row
    return {side: sorted(rows.values(), key=lambda row: row["rival_microseconds"]) for side, rows in fastest.items()}, reasons
