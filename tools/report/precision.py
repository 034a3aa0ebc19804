"""What check.log of tools/gpu_check says of the Hopper kernels' errors over long sequences, as a table."""

import re

from report.markdown import table
from report.results import BadResult

PRECISION = "precision"
LINE = re.compile(r"^(?P<dtype>\w+) D(?P<dim>\d+) T(?P<length>\d+) (?P<case>.*?) +(?P<errors>values .*%), of float sums (?P<float_sums>[\d.]+)%$",
                  re.MULTILINE)
OF_OTHERS = re.compile(r"^\[ RUN +\] Of(?:Ampere|Floats)/.*?(?=^\[ RUN )", re.MULTILINE | re.DOTALL)  # tests of the kernels for every GPU
DTYPES, DIMS = ("bfloat16", "float16"), (64, 128)


def precision_log(folder):
    """Where the folder's is, if there is one."""
    return folder / "check.log"


def precision_table(path):
    """A row a length and gate, %: the largest error over head dims, seeds, and values and gradients but the gate's; then that of d log f,
    by sums of floats and by sums of what those are rounded to.
    """
    worst = {}  # (length, case): {dtype: [values, dq, dk and dv; d log f by float sums; by 16-bit sums]}
    kernels = {}  # (length, case): (dtype, dim) that were seen
    for line in LINE.finditer(OF_OTHERS.sub("", path.read_text())):
        *others, gate = (float(x) for x in re.findall(r"([\d.]+)%", line["errors"]))
        case = int(line["length"]), line["case"]
        kernels.setdefault(case, set()).add((line["dtype"], int(line["dim"])))
        of_dtype = worst.setdefault(case, {}).setdefault(line["dtype"], [0.0] * 3)
        for i, value in enumerate((max(others), float(line["float_sums"]), gate)):
            of_dtype[i] = max(of_dtype[i], value)
    if not worst:
        raise BadResult(f"{path}: expected lines of errors over long sequences, found none")
    for (length, case), found in kernels.items():
        if missing := {(dtype, dim) for dtype in DTYPES for dim in DIMS} - found:
            raise BadResult(f"{path}: T = {length}, {case}: expected errors of every kernel, found none of {sorted(missing)}")
    rows = [[f"T = {length}, {case}", *(f"{value:.3f}" for dtype in DTYPES for value in of_dtypes[dtype])]
            for (length, case), of_dtypes in sorted(worst.items())]
    return table(["%", *(f"{dtype}: {what}" for dtype in DTYPES for what in ("o, dq, dk, dv", "d log f", "d log f, 16-bit sums"))], rows)
