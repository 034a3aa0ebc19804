#pragma once
// attention_inputs on the CPU.

#include "optimized/layers/attention_inputs.hpp"

namespace lethe::cpu {

/// One pass over tokens. Sums are float32, or float64 for float64; equal calls give equal bits with any number of threads.
///
/// cost  O(rows · width), two rows of one head a thread
void attention_inputs(const layers::AttentionInputs& call);

/// The same with the gradients. Statistics are computed again from the products.
///
/// cost  O(rows · width); a row of width numbers a thread, and the gradients of the norms and the bias for each 64 tokens
void attention_inputs_backward(const layers::AttentionInputs& call);

}  // namespace lethe::cpu
