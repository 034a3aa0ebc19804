#pragma once
// The tidy CSV files of records and points, and the paper's own numbers.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/record.hpp"

namespace lethe {

/// Writes `<base>.csv` with the header
///   experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,stddev,samples,
///   commit,machine,artefact
/// and `<base>.json`, its birth certificate: commit, dirty flag, command line, machine, compiler, Torch and library versions,
/// time, the members of `details`, and the SHA-256 of itself, of `<base>.csv`, and of `<base>.points.csv` where it is there. A record without commit
/// and machine has the certificate's. All are written to temporary files and renamed.
///
/// throws  std::invalid_argument for a text that would need quoting; std::runtime_error naming a file that can't be written
void write_records(const std::filesystem::path& base, const std::vector<Record>& records,
                   const std::string& command_line, const nlohmann::json& details = nlohmann::json::object());

/// Reads `<base>.json` back: against its SHA-256, and the CSV files against theirs.
///
/// throws  std::invalid_argument, std::runtime_error naming the file
nlohmann::json read_certificate(const std::filesystem::path& base);

/// Reads such a CSV back (fccp, columns by name). Its last three columns may be absent.
///
/// throws  std::runtime_error naming file, line and column
std::vector<Record> read_records(const std::filesystem::path& path);

/// One of the paper's own numbers: the keys of a Record, its source, and its comparability with ours.
struct PaperRecord {
  Record record;
  std::string source;         ///< "FoX Table 3"
  std::string comparability;  ///< "exact", "trend" or "context"
};

/// Reads a claim's paper.csv: the columns of a Record, then source and comparability.
///
/// throws  std::runtime_error naming file, line and column; also for a comparability other than those three
std::vector<PaperRecord> read_paper(const std::filesystem::path& path);

/// Writes `path` with the header quantity,variant,seed,x,y,value; six digits a value. Its certificate is that of its claim.
void write_points(const std::filesystem::path& path, const std::vector<Point>& points);

}  // namespace lethe
