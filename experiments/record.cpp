#include "experiments/record.hpp"

#include <libfccp/csv.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "experiments/data/run_program.hpp"
#include "experiments/files.hpp"

namespace lethe {
namespace {

constexpr const char* kHeader =
    "experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,"
    "stddev,"
    "samples";

/// A text as a field of a CSV that nobody has to unquote.
const std::string& plain(const std::string& text) {
  if (text.find_first_of(",\"\n\r") != std::string::npos)
    throw std::invalid_argument("record: expected a text without comma, quote and line break, found " + text);
  return text;
}

/// The shortest digits that read back as the same number, or as many as asked for.
std::string digits(double value, int significant = 0) {
  std::array<char, 32> text;
  const auto end =
      significant == 0
          ? std::to_chars(text.data(), text.data() + text.size(), value).ptr
          : std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, significant).ptr;
  return std::string(text.data(), end);
}

/// The checkout that a folder lies in; empty where it lies in none.
std::filesystem::path checkout_of(const std::filesystem::path& folder) {
  for (std::filesystem::path at = std::filesystem::absolute(folder); at != at.root_path(); at = at.parent_path())
    if (std::filesystem::exists(at / ".git")) return at;
  return {};
}

/// Commit and dirty flag of a checkout, null outside of one. What the runs themselves write doesn't make it dirty.
nlohmann::json revision(const std::filesystem::path& checkout) {
  if (checkout.empty()) return {{"commit", nullptr}, {"dirty", nullptr}};
  std::string commit = run_program({"git", "-C", checkout.string(), "rev-parse", "HEAD"});
  commit.resize(std::min(commit.size(), commit.find('\n')));
  const bool dirty =
      !run_program({"git", "-C", checkout.string(), "status", "--porcelain", "--", ".", ":(exclude)results"}).empty();
  return {{"commit", commit}, {"dirty", dirty}};
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

/// The number that a field spells, exactly (the CSV library's own conversion rounds at every digit).
double number(const std::string& text, const std::string& column, const std::string& place) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::runtime_error(place + ": " + column + ": expected a number, found '" + text + "'");
  return value;
}

/// Reads the columns of a Record and those named besides, row after row.
///
/// reads    consume: called with each record and "file, line n"; extra: the texts of the further columns, refilled for each row
template <typename Consume, typename... Name>
void read_rows(const std::filesystem::path& path, Consume consume, std::array<std::string, sizeof...(Name)>& extra,
               Name... name) {
  constexpr unsigned columns = 17 + sizeof...(Name);
  try {
    io::CSVReader<columns, io::trim_chars<' ', '\t'>, io::double_quote_escape<',', '"'>> reader(path.string());
    reader.read_header(io::ignore_no_column, "experiment", "claim", "variant", "implementation", "device", "dtype",
                       "batch", "length", "heads", "key_dim", "value_dim", "seed", "metric", "unit", "value", "stddev",
                       "samples", name...);
    Record r;
    std::string value, stddev;
    const auto read = [&](auto&... more) {
      return reader.read_row(r.experiment, r.claim, r.variant, r.implementation, r.device, r.dtype, r.batch, r.length,
                             r.heads, r.key_dim, r.value_dim, r.seed, r.metric, r.unit, value, stddev, r.samples,
                             more...);
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

}  // namespace

nlohmann::json birth_certificate(const std::filesystem::path& folder, const std::string& command_line) {
  utsname system{};
  uname(&system);
  std::array<char, 32> time;
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::strftime(time.data(), time.size(), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  nlohmann::json json = {{"command_line", command_line},
                         {"time", time.data()},
                         {"machine",
                          {{"name", machine_name()},
                           {"processor", processor()},
                           {"cores", std::thread::hardware_concurrency()},
                           {"memory_gib", std::round(memory / (1 << 30))},
                           {"system", std::string(system.sysname) + " " + system.release + " " + system.machine}}},
                         {"versions",
                          {{"compiler", std::string("g++ ") + __VERSION__},
                           {"torch", TORCH_VERSION},
                           {"eigen", std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) +
                                         "." + std::to_string(EIGEN_MINOR_VERSION)}}}};
  json.update(revision(checkout_of(folder)));
  return json;
}

void write_records(const std::filesystem::path& base, const std::vector<Record>& records,
                   const std::string& command_line, const nlohmann::json& details) {
  std::string table = std::string(kHeader) + "\n";
  for (const Record& r : records) {
    for (const std::string* text : {&r.experiment, &r.claim, &r.variant, &r.implementation, &r.device, &r.dtype})
      table += plain(*text) + ",";
    for (const int64_t count : {r.batch, r.length, r.heads, r.key_dim, r.value_dim})
      table += std::to_string(count) + ",";
    table += std::to_string(r.seed) + "," + plain(r.metric) + "," + plain(r.unit) + "," + digits(r.value) + "," +
             digits(r.stddev) + "," + std::to_string(r.samples) + "\n";
  }
  std::filesystem::create_directories(base.parent_path());
  nlohmann::json json = birth_certificate(base.parent_path(), command_line);
  json.update(details);
  write_whole(base.string() + ".csv", table);
  write_whole(base.string() + ".json", json.dump(1) + "\n");
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
      throw std::runtime_error(place + ": comparability: expected exact, trend or context, found '" + comparability +
                               "'");
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

std::string machine_name() {
  // The words of the processor's name, without those that every machine of its kind has.
  std::string text = processor();
  for (char& c : text)
    c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                                                    : ' ';
  std::istringstream words(text);
  std::string name;
  for (std::string word; words >> word;)
    if (word != "r" && word != "tm" && word != "cpu" && word != "processor") name += word + "-";
  return name + std::to_string(std::thread::hardware_concurrency()) + "-cores";
}

}  // namespace lethe
