#pragma once
// From the parallel form to the chunked one. Included by the .cpp files of variants with a state.

#include <algorithm>

#include "reference/fast_weights_input.hpp"

namespace lethe::reference {

/// Positions start … start + length − 1 of a head, with the queries at them, from a given state on.
template <typename Scalar>
BasicHead<Scalar> part_of(const BasicHead<Scalar>& head, Eigen::Index start, Eigen::Index length,
                          const Matrix<Scalar>& state) {
  const QueryRows queries = queries_in(head, start, length);
  const auto rows = [&](const auto& tensor) {
    return tensor.size() == 0 ? tensor : std::decay_t<decltype(tensor)>(tensor.middleRows(start, length));
  };
  return {head.query.middleRows(queries.row, queries.rows),
          rows(head.key),
          rows(head.value),
          rows(head.log_forget),
          head.scale,
          rows(head.log_key_gate),
          rows(head.log_value_gate),
          rows(head.write_strength),
          state};
}

/// One chunk of positions after the other: the parallel form inside each, and between them the state.
///
/// reads    parallel: an unnormalized form that starts from head.initial_state
/// throws   std::invalid_argument where chunk_length < 1
template <typename Scalar, typename Parallel>
BasicOutput<Scalar> in_chunks(const BasicHead<Scalar>& head, Eigen::Index chunk_length, const Parallel& parallel) {
  expect_chunk_length(chunk_length);
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = head.initial_state;
  // [chunked]
  for (Eigen::Index start = 0; start < head.key.rows(); start += chunk_length) {
    const Eigen::Index length = std::min(chunk_length, head.key.rows() - start);
    const BasicOutput<Scalar> chunk = parallel(part_of(head, start, length, output.state));
    output.values.middleRows(queries_in(head, start, length).row, chunk.values.rows()) = chunk.values;
    output.state = chunk.state;
  }
  // [/chunked]
  return output;
}

}  // namespace lethe::reference
