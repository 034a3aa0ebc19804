#pragma once
// The float sums of dQ as the Hopper family's tiles add them up, which attention_inputs' backward also reads: their layout.

namespace lethe {

/// Floats of one slice of the accumulated query gradient: 64 queries × 64 of D in the order of wgmma's accumulators (float4 k of
/// thread t at k·512 + 4t), then 64 row sums of dS. Where rows are summed in groups, the writing warpgroup's threads store their parts of
/// its tile's group sums instead. The slices are [B·Hq, Tp/64, D/64], Tp = Tq rounded up to 128, and hold zeros past Tq.
///
/// In a slice, queries r and r + 8 share 16 bytes: element (r, c), r mod 16 < 8, is float 512·(c/8) + 128·(r/16) + 16·(r mod 8) + 4·(c mod 8 / 2) + c
/// mod 2, and that of query r + 8 is two floats after it.
inline constexpr int kSliceFloats = 64 * 64 + 128;

}  // namespace lethe
