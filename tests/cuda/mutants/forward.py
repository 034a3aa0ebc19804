"""Of the forward kernel."""

from .mutant import Mutant, dropped, generated, never, one_more, swapped

MUTANTS = generated(
    "forward",
    ("forward_no_bias_masked", "issue_scores", "kGate && !kBiasFirst)", swapped("!kBiasFirst", "!kBiasFirst && kClean")),
    ("forward_no_bias_first", "issue_scores", "issue_dense_bias(rows.x, ones, bias, false)", swapped("ones", "0")),
    ("forward_output_not_rescaled", "ForwardConsumer::step", "if (moved) {", swapped("moved", "false && moved")),
    ("forward_row_bias_sign", "store_log_normalizer", "log2_approximate(rows.sum[h]) - row_bias[h]", swapped("-", "+")),
    ("forward_log_normalizer_base2", "store_log_normalizer", "std::numbers::ln2_v<float> * (rows.maximum[h]",
     swapped("std::numbers::ln2_v<float> *", "")),
    ("forward_position_of_first_row", "ForwardConsumer::position_of", "tile_row + 8 * h + offset", swapped("8 * h +", "")),
    ("forward_frame_high_only", "ForwardProducts::block_number", "(frame.high - end.x) + (frame.low - end.y)", swapped("+ (frame.low - end.y)", "")),
    ("forward_strong_frame_of_row_0", "ForwardProducts::block_number", "number + row_frame.row[1]", swapped("1", "0")),
    ("forward_strong_start_of_next", "change_tile", "start_unless(tile().strong, stage)", never("tile().strong")),
    ("forward_no_decay", "add_decay", "+= (decay[h].high + high) + (decay[h].low + low);",
     swapped("(decay[h].high + high) + (decay[h].low + low)", "0")),
    ("forward_mask_one_more", "mask", "columns_below(visibility.last_key(position + 8 * h) + 1 - first_column)", swapped("1", "2")),
    ("forward_cut_mask_one_more", "mask", "columns_below(visibility.first_key(at(h)) - first_column)", one_more("visibility.first_key(at(h))")),
    ("forward_cut_before_tile_only", "TileCuts::last_cut", "return tile.cut_within ?", never("tile.cut_within")),
    ("forward_overflow_one_row", "weights_fit", "rows.sum[0] < kLargestSum && rows.sum[1] < kLargestSum",
     swapped("&& rows.sum[1] < kLargestSum", "")),
    ("forward_half_sum", "sum_of_four", "value += __shfl_xor_sync(~0u, value, 1);", dropped),
    ("forward_repeats_one_a_cta", "schedule::take_next", "kRepeat ? turn", swapped("turn", "tiles")),
    ("forward_strong_last_block", "tile_at", "tile.strong |= base", swapped("|=", "=")),
    ("window_of_one_key_more", "Visibility::first_key", "first = query - window + 1;", swapped("+ 1", "")),
    ("forward_window_of_first_row", "own_edges", "(visibility.first_key(last_row) + kKeys - 1) / kKeys", swapped("last_row", "first_row")),
    ("forward_pairs_no_triangle", "count_pairs", "rows * first_visible + rows * (rows - 1) / 2", swapped("+ rows * (rows - 1) / 2", "")),
) + generated(
    "backward",
    ("forward_residual_is_output", "stage_output", "pairs[i] = pack<Element>(first - stored.x, second - stored.y);", dropped),
) + [
    Mutant("forward_block_number_sign", "forward", "ForwardProducts::block_number", "(frame.high - end.x) + (frame.low - end.y)",
           "(end.x - frame.high) + (end.y - frame.low)"),
    Mutant("forward_no_overflow_fp16", "forward", "weights_fit", "both.x < INFINITY && both.y < INFINITY &&", "true ||"),
    Mutant("forward_offset_of_nothing", "forward", "offset_of", "rows.maximum[h] == -INFINITY ? 0 :", ""),
    Mutant("forward_nan_lost", "forward", "follow_maximum", "!(largest <= rows.maximum[h] + kRescaleAbove)",
           "(largest > rows.maximum[h] + kRescaleAbove)"),
    Mutant("forward_nan_everywhere", "forward", "follow_maximum", "if (largest != -INFINITY)", ""),
    Mutant("forward_first_of_last_rows", "forward", "tile_at", "tile.query / static_cast<int>(kGateBlock)",
           "min(a.query_blocks - 1, (tile.query + kRows - 1) / static_cast<int>(kGateBlock))"),
]
