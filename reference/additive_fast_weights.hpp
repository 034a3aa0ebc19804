#pragma once
// The additive rule, where the fast weights begin.

#include "reference/linear_attention.hpp"

/// Fast weights that only add up: linear attention under the name that the papers on update rules give it.
///
///   S_t = S_{t−1} + k_t v_tᵀ,   z_t = z_{t−1} + k_t          o_t = scale · S_tᵀ q_t, or S_tᵀ q_t / z_t·q_t
///
/// source   Mao 2022, Eq. 3, with (Normalized::kYes) or without its attention normalization
/// reads, returns, throws, cost   as linear_attention
namespace lethe::reference::additive_fast_weights {

using linear_attention::chunked;
using linear_attention::gradients;
using linear_attention::parallel;
using linear_attention::recurrent;

}  // namespace lethe::reference::additive_fast_weights
