"""backward_profile.json of tools/gpu_profile as a table: what a backward's main kernel executes, and how busy it keeps what it runs on."""

import json

from report.markdown import number, table
from report.results import BadResult

PROFILE = "backward_profile"
ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
# Column: metric, factor.
COLUMNS = {
    "cycles (million)": ("gpc__cycles_elapsed.avg", 1e-6),
    "instructions of all warps (million)": ("smsp__inst_executed.sum", 1e-6),
    "tensor core busy (%)": (f"sm__pipe_tensor_cycles_active{ELAPSED}", 1),
    "shared memory busy (%)": (f"l1tex__data_pipe_lsu_wavefronts{ELAPSED}", 1),
    "issue slots taken (%)": (f"sm__issue_active{ELAPSED}", 1),
    "exponentials' unit (%)": (f"sm__inst_executed_pipe_xu{ELAPSED}", 1),
    "integer unit (%)": (f"sm__pipe_alu_cycles_active{ELAPSED}", 1),
    "float units (%)": (f"sm__pipe_fma_cycles_active{ELAPSED}", 1),
}


def profile_data(folder):
    """Where the folder's is, if there is one."""
    return folder / f"{PROFILE}.json"


def profile_table(path):
    """A row a head dimension and kernel."""
    rows = []
    for kernel in json.loads(path.read_text())["kernels"]:
        row = [f"D = {kernel['head_dim']}, {kernel['kernel']}"]
        for metric, factor in COLUMNS.values():
            if metric not in kernel["metrics"]:
                raise BadResult(f"{path}: {row[0]}: expected {metric}, found none")
            row.append(number(factor * kernel["metrics"][metric][0]))
        rows.append(row)
    return table(["", *COLUMNS], rows)
