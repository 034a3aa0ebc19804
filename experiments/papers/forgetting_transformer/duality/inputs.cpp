#include "experiments/papers/forgetting_transformer/duality/inputs.hpp"

#include <algorithm>

namespace lethe::duality {
namespace {

using reference::Input;

bool reads(const reference::Variant& variant, Input input) { return std::ranges::count(variant.inputs, input) > 0; }

/// [T, columns]: column i holds (2i + 1)/columns of the gate's logarithm times `share`; the columns' mean is `share` of it.
Matrix<double> spread(const Vector<double>& log_forget, Eigen::Index columns, double share) {
  const auto count = static_cast<double>(columns);
  const Vector<double> shares = share / count * Vector<double>::LinSpaced(columns, 1.0, 2.0 * count - 1.0);
  return log_forget * shares.transpose();
}

template <typename Gate>
void move_by_one(Gate& gate) {
  if (gate.size() == 0) return;
  const Eigen::Index last = gate.rows() - 1;
  gate.topRows(last) = gate.bottomRows(last).eval();
  gate.row(last).setZero();
}

}  // namespace

Head inputs_of(const reference::Variant& variant, const Head& traced) {
  Head head{.query = traced.query, .key = traced.key, .value = traced.value, .log_forget = {}, .scale = traced.scale};
  const bool rows = reads(variant, Input::kLogKeyGate), columns = reads(variant, Input::kLogValueGate),
             whole = reads(variant, Input::kLogForget), writes = reads(variant, Input::kWriteStrength);
  const double share = rows + columns + whole > 1 ? 0.5 : 1.0;  // per gate, where one state has two
  if (whole) head.log_forget = (rows ? share : 1.0) * traced.log_forget;
  if (rows) head.log_key_gate = spread(traced.log_forget, traced.key.cols(), share);
  if (columns) head.log_value_gate = spread(traced.log_forget, traced.value.cols(), share);
  if (writes) {
    head.write_strength = -traced.log_forget.array().expm1();
    const bool has_features = reads(variant, Input::kInitialNormalizer);
    if (!has_features) {
      head.query.rowwise().normalize();
      head.key.rowwise().normalize();
    }
  }
  return head;
}

Head with_gates_off_by_one(Head head) {
  move_by_one(head.log_forget);
  move_by_one(head.log_key_gate);
  move_by_one(head.log_value_gate);
  return head;
}

bool reads_a_gate(const reference::Variant& variant) {
  return reads(variant, Input::kLogForget) || reads(variant, Input::kLogKeyGate) ||
         reads(variant, Input::kLogValueGate);
}

}  // namespace lethe::duality
