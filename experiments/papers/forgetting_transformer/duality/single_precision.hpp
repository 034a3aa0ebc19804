#pragma once
// The registry's rows in single precision: the registry itself holds double alone.

#include <functional>
#include <optional>
#include <string>

#include "reference/head.hpp"

namespace lethe::duality {

/// A row's forms in float. Features are computed in double and rounded: they come before the forms part.
struct SingleForms {
  using Form = std::function<BasicOutput<float>(const BasicHead<float>&)>;

  std::function<Head(const Head&)> features;  ///< what the row does to query and key first; absent where nothing
  Form recurrent, parallel;
  /// Absent for the softmax family: the papers' block algorithm is in the reference in double alone.
  std::function<BasicOutput<float>(const BasicHead<float>&, Eigen::Index chunk_length)> chunked;

  /// What the forms read.
  BasicHead<float> rounded(const Head& head) const;
};

/// The forms of the registry's row of that name; nullopt for one that isn't known here.
std::optional<SingleForms> single_forms(const std::string& variant);

}  // namespace lethe::duality
