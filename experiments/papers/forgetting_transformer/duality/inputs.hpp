#pragma once
// From what a trained Forgetting Transformer's attention saw to what each row of the reference's registry reads.

#include "reference/variant.hpp"

namespace lethe::duality {

/// The head that `variant` gets for a traced one (query, key, value, log_forget, scale), each input from a trained one:
///
///   query, key          as they are; scaled to length 1 for a delta rule without a feature map, whose state would grow for longer ones
///   value, log_forget   as they are
///   log_key_gate        (2r + 1)/K · log f_t for row r of the state: rows that hold on for different times, log f_t on average;
///                       half of it, and half of log_forget, where the variant reads both
///   log_value_gate      (2c + 1)/V · log f_t for column c; half of it, and half of log_key_gate, where it reads both
///   write_strength      1 − f_t: what the gate takes away makes room for what is written
///   initial states      none: the sequence begins with the text
Head inputs_of(const reference::Variant& variant, const Head& traced);

/// The gates moved by one token towards the beginning, the last token's left open: a mistake that the comparison has to find.
Head with_gates_off_by_one(Head head);

/// Whether a row reads a gate at all.
bool reads_a_gate(const reference::Variant& variant);

}  // namespace lethe::duality
