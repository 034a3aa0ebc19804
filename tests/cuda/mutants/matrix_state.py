"""Of the matrix state's kernels and the short convolution: a gate's factor left out or of another token, a mask, the borders of chunks and segments, a sign.

Without one are what this GPU leaves to kernels of wgmma (fused_states, fused_gradients, and the delta rule's kernels beside those in hopper/), clear_marks,
whose marks a first call finds at zero now and then, and kernels that differ from one below in sizes alone.
"""

from .mutant import dropped, generated, inclusive, swapped

MUTANTS = generated(
    "matrix_state",
    ("state_forward_mask", "weigh_scores", "if (n % 2 == e / 2) four[e] = seen[e % 2] ? four[e] : 0.0f;", swapped("seen[e % 2] ? four[e] : 0.0f", "four[e]")),
    ("state_decay_of_chunks", "State::forget", "decay *= total;", dropped),
    ("state_segment_decay", "join_segments", "joined(x[e], decay[i], sum[e], p.scale)", swapped("decay[i]", "1.0f")),
    ("state_segment_last_chunk", "segment_sums", "n < count; ++n", swapped("count", "count - 1")),
    ("state_gates_by_time", "prepare_all_gates", "load(true)", swapped("true", "false")),
    ("state_divided_gates", "divide_gates", "divided.x * to.entry", swapped("* to.entry", "")),
    ("state_divided_mask", "DividedPairs", "weights[4 * n + e] = seen_ >> (4 * n + e) & 1 ? weight : 0.0f;", swapped("seen_ >> (4 * n + e) & 1 ? weight : 0.0f", "weight")),
    ("state_divided_sum", "DividedPairs", "of_keys[2 * n + e] = fmaf(scores[far], grads[far], scores[near] * grads[near]);", swapped("fmaf(scores[far], grads[far], scores[near] * grads[near])", "scores[near] * grads[near]")),
    ("state_divided_last_chunk", "divided_segment_sums", "n < count; ++n", swapped("count", "count - 1")),
    ("state_gradient_mask", "weigh_pairs_in_one_way", "after >> i & 1 ? score * grad : 0.0f", swapped("after >> i & 1 ? score * grad : 0.0f", "score * grad")),
    ("state_gate_of_keys", "PairSums::store", "to[16 * at.block + at.lane / 4] -= near;", dropped),
    ("state_sweep_mask", "sweep", "scores[c][e] = seen ? scores[c][e] * weight : 0.0f;", swapped("seen ? scores[c][e] * weight : 0.0f", "scores[c][e] * weight")),
    ("state_sweep_partner", "add_shares", "query_shares[at] + key_shares[at]", swapped("+ key_shares[at]", "")),
    ("vector_sweep_total", "VectorSweep", "s[e] *= e % 2 ? total.y : total.x;", swapped("total.y", "total.x")),
    ("vector_sweep_value_gate", "VectorSweep", "s[e] *= column_total[e / 2];", dropped),
    ("vector_pairs_next_token", "vector_pairs", "{b.x, a.y * run.f[j + 1]}", swapped("* run.f[j + 1]", "")),
    ("vector_states_runs", "vector_states", "others[h] *= gates.eight[h];", dropped),
    ("vector_gradient_next_chunk", "VectorRows::begin", "grad_factor[h] = kLog2e * gates[row_of(h)];", dropped),
    ("vector_sides_blocks", "SideGradients", "terms[h] + to_sibling[h] * sibling[h]", swapped("+ to_sibling[h] * sibling[h]", "")),
    ("vector_sides_whole_heads", "HeadGradient::step", "gates[e / 2] * gates[2 + 2 * n + e % 2]", swapped("gates[e / 2] *", "")),
    ("vector_side_states_unit", "SideStates::forward", "units[0] * units[2]", swapped("units[2]", "units[0]")),
    ("vector_side_states_decay", "SideStates::back", "now[i].gates[e / 2] * now[i].gates[2 + 2 * n + e % 2]", swapped("now[i].gates[e / 2] *", "")),
    ("delta_solve_strength", "ChunkSolver", "fabsf(beta.y) < kLeast ? -kLeast : -beta.y", swapped("-beta.y", "-1.0f")),
    ("delta_solve_across", "ChunkSolver", "across = Parts(block(1, 0)).transposed();", swapped(".transposed()", "")),
    ("delta_sweep_decay", "DeltaSweep", "tokens.gates.total * unit * reciprocal_of_power(next)", swapped("tokens.gates.total * unit", "unit")),
    ("delta_sweep_triangle", "add_triangle", "int i = k; i < kWarps; ++i", swapped("int i = k;", "int i = k + 1;")),
    ("delta_kept_unit", "DeltaSweep", "p.arrays.before_unit[kept] = unit;", swapped("= unit", "= 1.0f")),
    ("delta_back_sweep_decay", "DeltaBackSweep", "tokens.gates.total * unit * reciprocal_of_power(next)", swapped("tokens.gates.total * unit", "unit")),
    ("delta_gradient_pair", "ChunkGradients", "x[e + 1] *= m.y * unit;", swapped("m.y", "m.x")),
    ("delta_gate_one_share", "add_gate_shares", "to[at] += share[at]", swapped("+=", "=")),
    ("delta_keys_last_block", "DeltaKeyPreparation", "small.totals[2][c] * small.totals[3][c]", swapped("* small.totals[3][c]", "")),
    ("delta_keys_sweep_sign", "DeltaKeySweep", "x[i][e] *= -factor * unit;", swapped("-factor", "factor")),
    ("delta_keys_reverse_sign", "DeltaKeyReverse", "x[i][e] *= -factor;", swapped("-factor", "factor")),
    ("delta_keys_sweep_decay", "DeltaKeyWarpgroupSweep", "this->decay(floats(Stage::kTotals));", dropped),
    ("delta_keys_reverse_decay", "DeltaKeyWarpgroupReverse", "this->decay(floats(Stage::kTotals));", dropped),
    ("delta_keys_gate_of_states", "DeltaKeyGradient", "* unit + of_states[j / 2]", swapped("+ of_states[j / 2]", "")),
    ("scan_held", "scan", "written[j] -= held[j];", dropped),
    ("scan_row_terms", "add_row_terms", "sum += terms[at];", swapped("+=", "=")),
    ("scan_token_terms", "add_token_terms", "sum += sums[t - first];", swapped("+=", "=")),
    ("step_key_gate", "step", "s[i][j] * factor * value_gate[j]", swapped("* factor", "")),
) + generated(
    "segments",
    ("state_heads_chunk", "head_states", "order.chunks - 1 - n : n", swapped(": n", ": n + 1")),
    ("state_handed_on", "sweep_grad_states", "join(); const int64_t segment", swapped("join();", "")),
) + generated(
    "layers",
    ("convolution_token", "short_convolution_kernel", "at.begin - W + i", swapped("W + i", "W + i + 1")),
    ("convolution_run", "short_convolution_backward_kernel", "t < end;", inclusive),
)
