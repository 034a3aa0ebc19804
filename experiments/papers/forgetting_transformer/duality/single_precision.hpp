#pragma once
// The registry's rows in single precision: the registry itself holds only double.

#include <functional>
#include <optional>
#include <string>

#include "reference/head.hpp"

namespace lethe::duality {

/// A row's forms in float. Features are computed in double and rounded: they are common to all forms.
struct SingleForms {
  using Form = std::function<BasicOutput<float>(const BasicHead<float>&)>;

  std::function<Head(const Head&)> features;  ///< the row's map of query and key; absent where there is none
  Form recurrent, parallel;
  /// Absent for the softmax family: the reference has the papers' block algorithm only in double.
  std::function<BasicOutput<float>(const BasicHead<float>&, Eigen::Index chunk_length)> chunked;

  /// The inputs of the forms.
  BasicHead<float> rounded(const Head& head) const;
};

/// The forms of the registry's row of that name; nullopt for a row without forms in float.
std::optional<SingleForms> single_forms(const std::string& variant);

}  // namespace lethe::duality
