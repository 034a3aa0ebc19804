#include "experiments/claims/record_files.hpp"

#include <libfccp/csv.h>

#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "experiments/certificate.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

constexpr const char* kHeader =
    "experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,"
    "stddev,"
    "samples,commit,machine,artefact";

constexpr size_t kLongestName = 255;  // of a file

/// A text that is a CSV field without quotes.
const std::string& plain(const std::string& text) {
  if (text.find_first_of(",\"\n\r") != std::string::npos)
    throw std::invalid_argument("record: expected a text without comma, quote and line break, found " + text);
  return text;
}

/// The shortest digits that read back as the same number, or the given number of digits.
std::string digits(double value, int significant = 0) {
  std::array<char, 32> text;
  const auto end =
      significant == 0
          ? std::to_chars(text.data(), text.data() + text.size(), value).ptr
          : std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, significant).ptr;
  return std::string(text.data(), end);
}

/// The number of a field, exactly (the CSV library's own conversion rounds at every digit).
double number(const std::string& text, const std::string& column, const std::string& place) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::runtime_error(place + ": " + column + ": expected a number, found " + shown(text));
  return value;
}

/// Reads the columns of a Record and the further named columns, row by row.
///
/// reads    consume: called with each record and "file, line n"; extra: the texts of the further columns, overwritten for each row
template <typename Consume, typename... Name>
void read_rows(const std::filesystem::path& path, Consume consume, std::array<std::string, sizeof...(Name)>& extra,
               Name... name) {
  constexpr unsigned columns = 20 + sizeof...(Name);
  try {
    io::CSVReader<columns, io::trim_chars<' ', '\t'>, io::double_quote_escape<',', '"'>> reader(path.string());
    reader.read_header(io::ignore_missing_column, "experiment", "claim", "variant", "implementation", "device", "dtype",
                       "batch", "length", "heads", "key_dim", "value_dim", "seed", "metric", "unit", "value", "stddev",
                       "samples", "commit", "machine", "artefact", name...);
    for (const char* column :
         {"experiment", "claim", "variant", "implementation", "device", "dtype", "batch", "length", "heads", "key_dim",
          "value_dim", "seed", "metric", "unit", "value", "stddev", "samples", static_cast<const char*>(name)...})
      if (!reader.has_column(column))
        throw std::runtime_error(path.string() + ": expected the column " + column + ", found none");
    Record r;
    std::string value, stddev;
    const auto read = [&](auto&... more) {
      return reader.read_row(r.experiment, r.claim, r.variant, r.implementation, r.device, r.dtype, r.batch, r.length,
                             r.heads, r.key_dim, r.value_dim, r.seed, r.metric, r.unit, value, stddev, r.samples,
                             r.commit, r.machine, r.artefact, more...);
    };
    while (std::apply(read, extra)) {
      const std::string place = path.string() + ", line " + std::to_string(reader.get_file_line());
      r.value = number(value, "value", place);
      r.stddev = number(stddev, "stddev", place);
      consume(r, place);
    }
  } catch (const io::error::base& error) {
    throw std::runtime_error(error.what());
  }
}

// The GPU of the records that were measured on one, if this machine has it; else the CPU.
torch::Device device_of(const std::vector<Record>& records) {
  for (const Record& record : records)
    if (record.device.starts_with("cuda") && at::hasCUDA()) return torch::Device(record.device);
  return torch::kCPU;
}

}  // namespace

void write_records(const std::filesystem::path& base, const std::vector<Record>& records,
                   const std::string& command_line, const nlohmann::json& details) {
  nlohmann::json json = birth_certificate(base.parent_path(), command_line, device_of(records));
  json.update(details);
  const std::string commit = json.at("commit"), machine = json.at("machine").at("name");
  std::string table = std::string(kHeader) + "\n";
  for (const Record& r : records) {
    for (const std::string* text : {&r.experiment, &r.claim, &r.variant, &r.implementation, &r.device, &r.dtype})
      table += plain(*text) + ",";
    for (const int64_t count : {r.batch, r.length, r.heads, r.key_dim, r.value_dim})
      table += std::to_string(count) + ",";
    table += std::to_string(r.seed) + "," + plain(r.metric) + "," + plain(r.unit) + "," + digits(r.value) + "," +
             digits(r.stddev) + "," + std::to_string(r.samples) + "," + plain(r.commit.empty() ? commit : r.commit) +
             "," + plain(r.machine.empty() ? machine : r.machine) + "," + plain(r.artefact) + "\n";
  }
  std::filesystem::create_directories(base.parent_path());
  write_whole(base.string() + ".csv", table);
  json["files"] = nlohmann::json::object();
  for (const char* ending : {".csv", ".points.csv"})
    if (const std::filesystem::path file = base.string() + ending; std::filesystem::exists(file))
      json["files"][file.filename().string()] = sha256(read_whole(file));
  write_sealed(base.string() + ".json", json);
}

nlohmann::json read_certificate(const std::filesystem::path& base) {
  const std::filesystem::path path = base.string() + ".json";
  nlohmann::json json = read_sealed(path);
  const nlohmann::json files = json.value("files", nlohmann::json());
  if (!files.is_object())
    throw std::invalid_argument(path.string() + ": files: expected their hashes by name, found " +
                                (files.is_null() ? "none" : shown(files.dump())));
  for (const auto& [name, hash] : files.items()) {
    const std::filesystem::path file = base.parent_path() / name;
    if (name.size() > kLongestName || file.filename() != name)
      throw std::invalid_argument(path.string() + ": files: expected names in its folder, found " + shown(name));
    if (const std::string found = sha256(read_whole(file)); hash != found)
      throw std::invalid_argument(file.string() + ": expected content with SHA-256 " + shown(hash) + ", found " +
                                  found);
  }
  return json;
}

std::vector<Record> read_records(const std::filesystem::path& path) {
  std::vector<Record> records;
  std::array<std::string, 0> none;
  read_rows(
      path, [&](const Record& record, const std::string&) { records.push_back(record); }, none);
  return records;
}

std::vector<PaperRecord> read_paper(const std::filesystem::path& path) {
  std::vector<PaperRecord> numbers;
  std::array<std::string, 2> extra;
  const auto consume = [&](const Record& record, const std::string& place) {
    const auto& [source, comparability] = extra;
    if (comparability != "exact" && comparability != "trend" && comparability != "context")
      throw std::runtime_error(place + ": comparability: expected exact, trend or context, found " +
                               shown(comparability));
    numbers.push_back({record, source, comparability});
  };
  read_rows(path, consume, extra, "source", "comparability");
  return numbers;
}

void write_points(const std::filesystem::path& path, const std::vector<Point>& points) {
  std::string table = "quantity,variant,seed,x,y,value\n";
  for (const Point& p : points)
    table += plain(p.quantity) + "," + plain(p.variant) + "," + std::to_string(p.seed) + "," + digits(p.x, 9) + "," +
             (std::isnan(p.y) ? "" : digits(p.y, 9)) + "," + digits(p.value, 6) + "\n";
  std::filesystem::create_directories(path.parent_path());
  write_whole(path, table);
}

}  // namespace lethe
