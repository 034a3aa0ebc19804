#pragma once
// Tables of text in aligned columns.

#include <string>
#include <vector>

namespace lethe {

/// Rows of cells. The first column is aligned to the left; another to the right where at least half of its entries below the header begin
/// with a digit or a sign, else to the left.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// A line of its own, outside of the columns.
  void add_line(std::string text) { rows_.push_back({std::move(text)}); }

  /// Lines that end with '\n', each indented by `indent` spaces, two spaces between columns. Columns without any entry are left out.
  std::string text(size_t indent = 2) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// 1234567 as "1.23M", 15360 as "15.4k", 512 as "512".
std::string short_count(double count);

/// A number with `digits` decimal places; "" where it is not finite.
std::string fixed(double value, int digits);

}  // namespace lethe
