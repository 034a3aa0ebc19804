"""Of the plan: the gate's prefix and the boundaries."""

from .mutant import Mutant, dropped, generated, one_more, swapped

MUTANTS = generated(
    "plan",
    ("plan_float_base", "store_base", "two_floats(base * std::numbers::log2e)",
     swapped("base * std::numbers::log2e", "static_cast<float>(base * std::numbers::log2e)")),
    ("plan_start_of_one_scale", "store_tokens", "to_end[i] * inverse_scale", swapped("inverse_scale", "8")),
    ("plan_start_nan", "store_tokens", "isnan(number) ? 0 : within_bias_parts(number)", swapped("isnan(number) ? 0 :", "")),
    ("plan_cut_in_sum", "sum_blocks", "sum += cut ? 0.0f :", swapped("0.0f", "-20000.0f")),
    ("plan_cut_below_lost", "join_cuts", "if (cuts.before[i] < 0 && lane > 0) cuts.before[i] = below;", dropped),
    ("plan_other_layout", "sum_blocks", "token * a.token_stride + head * a.head_stride",
     swapped("token_stride + head * a.head_stride", "heads + head")),
    ("plan_heads_8", "sum_blocks", "first_head < a.heads;", swapped("a.heads", "min(a.heads, 8)")),
    ("plan_counters_kept", "HopperOperands::clear", "*scratch.next_tile = scratch.repeats[0] = 0;", swapped("*scratch.next_tile =", "")),
    ("plan_no_query_offset", "find_boundary", "m * kBlock + a.offset", swapped("+ a.offset", "")),
    ("plan_half_bound", "find_boundary", "log_share = -2 * bound", swapped("2", "1")),
    ("plan_prune_one_more", "find_boundary", "const int end = first + n + 1;", swapped("+ 1", "")),
    ("plan_no_mass", "find_boundary", "base[n] - log(double(mass[n]))", swapped("log(double(mass[n]))", "0")),
    ("plan_mass_of_block", "joined", "mass += x.mass *", swapped("x.mass", "0")),
    ("plan_cut_prunes_one_more", "find_boundary", "visibility_of_queries(a.prefix, row, a.key_blocks).first_key(position) / kBlock;",
     swapped("visibility_of_queries(a.prefix, row, a.key_blocks).first_key(position)",
             "(visibility_of_queries(a.prefix, row, a.key_blocks).first_key(position) + 1)")),
    ("plan_no_window", "find_boundary", "has_cuts || a.prefix.window <= position", swapped("|| a.prefix.window <= position", "")),
    ("plan_norm_of_key_head_0", "find_boundary", "batch * a.heads + head", swapped("+ head", "")),
    ("plan_norm_half_row", "find_largest_square", "chunks[pass].z, chunks[pass].w}", swapped(", chunks[pass].w", "")),
) + generated(
    "backward",
    ("plan_strong_alone", "find_boundary", "fmin(sums[n], sums[before])", swapped("fmin(sums[n], sums[before])", "sums[n]")),
    ("plan_last_query_one_less", "find_boundary", "> n; }) - 1;", swapped("- 1", "- 2"), {"hangs": True}),
    ("strong_prefix", "prefix_at", "local += prefix.bias_rest[at];", dropped),
) + [
    Mutant("plan_bias_from_float", "plan", "sum_blocks", "inclusive - sum + local[i]", "float(float(inclusive - sum) + float(local[i]))"),
    Mutant("plan_rows_apart_behind", "plan", "find_boundary", "decays(n) || decays(before)", "decays(n)"),
    Mutant("row_groups_of_nan", "plan", "gate_decays", "!(block_sum > -1)", "block_sum <= -1"),
]
