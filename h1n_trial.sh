#!/bin/bash
# usage: h1n_trial.sh LIBRARY BASE_LIBRARY   (both liblethe_torch.so; from the repository's root, on one H200, about 60 s)
# Checks first: the two calls whose budgets were missed, shares of the budget by name (must be <= 1); then times in turn.
new=$1 base=$2
cd tests/cuda && timeout 200 python3 - "$new" "$base" <<'P'
import sys, time
import torch
new, base = sys.argv[1:3]
sys.argv = sys.argv[:1]
import test_long_states as L
torch.ops.load_library(new)
begin = time.time()
for call, dtypes in (("normalized", (torch.float16, torch.bfloat16)), ("key and value gates", (torch.bfloat16, torch.float16))):
    given, direction = L.problem(call)
    expected = L.results(call, given, direction, torch.float64, "cpu")
    floor = 1e-3 * expected["query"].norm().item()
    for dtype in dtypes:
        found = L.results(call, given, direction, dtype, "cuda")
        again = L.results(call, given, direction, dtype, "cuda")
        assert all(torch.equal(found[n], again[n]) for n in found), "equal calls, other bits"
        shares = {}
        for name, tensor in expected.items():
            error, kind = L.worst_heads(found[name], tensor, floor if "gate" in name else 0.0)
            shares[f"{name} ({kind})"] = round(error / (L.GATE_BUDGET if "gate" in name else L.BUDGET[dtype]), 3)
        print("OK  " if max(shares.values()) <= 1 else "OVER", call, dtype, shares, f"{time.time() - begin:.0f} s", flush=True)
P
timeout 120 python3 test_matrix_segments.py "$new" Segments.test_keep_the_budget_where_normalised_gradients_have_a_unit \
  Segments.test_states_of_many_heads_and_chunks_are_left_and_read Segments.test_leave_states_for_the_backward 2>&1 | tail -5
timeout 120 python3 test_matrix_state.py "$new" VectorGates 2>&1 | tail -5
cd ../../optimized/benchmarks/cuda
for turn in 1 2; do for library in "$base" "$new"; do
  echo "== $library"; timeout 60 python3 matrix_state.py "$library" --only "key and value gates" --only normalized 2>&1 | tail -4
done; done
timeout 40 python3 matrix_state.py "$new" --profile /tmp/h1n_new.log --only "key and value gates"; grep -h vector_side /tmp/h1n_new.log
timeout 40 python3 matrix_state.py "$base" --profile /tmp/h1n_base.log --only "key and value gates"; grep -h vector_side /tmp/h1n_base.log
