#pragma once
// Inputs for each row of the reference's registry, computed from the traced attention of a trained Forgetting Transformer.

#include "reference/variant.hpp"

namespace lethe::duality {

/// The input of `variant` for a traced head (query, key, value, log_forget, scale), each member computed from a traced one:
///
///   query, key          unchanged; scaled to length 1 for a delta rule without a feature map: longer ones would make its state grow
///   value, log_forget   unchanged
///   log_key_gate        (2r + 1)/K · log f_t for row r of the state: rows with different decay times, log f_t on average;
///                       half of it, and half of log_forget, where the variant reads both
///   log_value_gate      (2c + 1)/V · log f_t for column c; half of it, and half of log_key_gate, where it reads both
///   write_strength      1 − f_t: the write replaces the share that the gate removes
///   initial states      none: the sequence begins with the text
Head inputs_of(const reference::Variant& variant, const Head& traced);

/// The gates moved by one token towards the beginning, the last token's left open: an error that the comparison has to detect.
Head with_gates_off_by_one(Head head);

/// Whether a row reads a gate at all.
bool reads_a_gate(const reference::Variant& variant);

}  // namespace lethe::duality
