#pragma once
// One measured number with its key columns, and the tidy CSV that holds them.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lethe {

/// A row of results/<machine>/<claim>.csv.
struct Record {
  std::string experiment = {}, claim = {}, variant = {}, implementation = {}, device = {}, dtype = {};
  int64_t batch = 0, length = 0, heads = 0, key_dim = 0, value_dim = 0;
  uint64_t seed = 0;
  std::string metric = {}, unit = {};
  double value = 0, stddev = 0;
  int64_t samples = 1;
};

/// Where and from what a result comes: commit and dirty flag of the checkout around `folder` (null outside of one), command line,
/// machine, compiler, Torch and library versions, time.
nlohmann::json birth_certificate(const std::filesystem::path& folder, const std::string& command_line);

/// Writes `<base>.csv` with the header
///   experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,stddev,samples
/// and `<base>.json`, its birth certificate: commit, dirty flag, command line, machine, compiler, Torch and library versions,
/// time, and the members of `details`. Both are written beside their place and renamed.
///
/// throws  std::invalid_argument for a text that would need quoting; std::runtime_error naming a file that can't be written
void write_records(const std::filesystem::path& base, const std::vector<Record>& records,
                   const std::string& command_line, const nlohmann::json& details = nlohmann::json::object());

/// Reads such a CSV back (fccp, columns by name).
///
/// throws  std::runtime_error naming file, line and column
std::vector<Record> read_records(const std::filesystem::path& path);

/// One of the paper's own numbers: the keys of a Record, where it stands, and what we claim of it.
struct PaperRecord {
  Record record;
  std::string source;         ///< "FoX Table 3"
  std::string comparability;  ///< "exact", "trend" or "context"
};

/// Reads a claim's paper.csv: the columns of a Record, then source and comparability.
///
/// throws  std::runtime_error naming file, line and column, or a comparability that is none of the three
std::vector<PaperRecord> read_paper(const std::filesystem::path& path);

/// A point of a curve or an entry of a matrix: what a plot needs and a table doesn't.
struct Point {
  std::string quantity = {};  ///< "loss_at_position", "training_loss", "decay", …
  std::string variant = {};
  uint64_t seed = 0;
  double x = 0;
  double y = std::numeric_limits<double>::quiet_NaN();  ///< empty in the file for a curve
  double value = 0;
};

/// Writes `path` with the header quantity,variant,seed,x,y,value; six digits a value. Its certificate is that of its claim.
void write_points(const std::filesystem::path& path, const std::vector<Point>& points);

/// Where results of this machine go: results/<name>, the name from the processor and the number of its cores, e.g.
/// "amd-epyc-9b14-2-cores".
std::string machine_name();

}  // namespace lethe
