#include "experiments/commands/text_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace lethe {
namespace {

// Characters of a UTF-8 text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_number(const std::string& cell) {
  return (cell.front() >= '0' && cell.front() <= '9') || cell.front() == '-' || cell.front() == '+';
}

struct Column {
  size_t width = 0, entries = 0, numbers = 0;  // below the header

  bool is_of_numbers() const { return 2 * numbers >= entries; }
};

}  // namespace

std::string TextTable::text(size_t indent) const {
  std::vector<Column> columns(rows_.front().size());
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r].size() < columns.size()) continue;  // a line of its own
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string& cell = rows_[r][c];
      columns[c].width = std::max(columns[c].width, width_of(cell));
      if (r == 0 || cell.empty()) continue;
      ++columns[c].entries;
      columns[c].numbers += c > 0 && is_number(cell);
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(indent, ' ');
    if (row.size() < columns.size()) line += row.front();
    for (size_t c = 0; row.size() == columns.size() && c < columns.size(); ++c) {
      if (columns[c].entries == 0) continue;
      const std::string padding(columns[c].width - width_of(row[c]), ' ');
      line += (line.size() > indent ? "  " : "") + (columns[c].is_of_numbers() ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string short_count(double count) {
  const char* unit = "";
  for (const char* next : {"k", "M", "G", "T"}) {
    if (count < 999.5) break;
    count /= 1000;
    unit = next;
  }
  char text[32];
  std::snprintf(text, sizeof text, *unit ? "%.3g%s" : "%.0f%s", count, unit);
  return text;
}

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return "";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace lethe
