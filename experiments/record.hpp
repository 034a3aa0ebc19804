#pragma once
// One measured number with its key columns, and the tidy CSV that holds them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lethe {

/// A row of results/<machine>/<claim>.csv.
struct Record {
  std::string experiment, claim, variant, implementation, device, dtype;
  int64_t batch = 0, length = 0, heads = 0, key_dim = 0, value_dim = 0;
  uint64_t seed = 0;
  std::string metric, unit;
  double value = 0, stddev = 0;
  int64_t samples = 1;
};

/// Writes `<base>.csv` with the header
///   experiment,claim,variant,implementation,device,dtype,batch,length,heads,key_dim,value_dim,seed,metric,unit,value,stddev,samples
/// and `<base>.json`, its birth certificate: commit, dirty flag, command line, machine, compiler, Torch and library versions,
/// time. Both are written beside their place and renamed.
void write_records(const std::filesystem::path& base, const std::vector<Record>& records, const std::string& command_line);

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
std::vector<PaperRecord> read_paper(const std::filesystem::path& path);

/// Where results of this machine go: results/<name>, the name from the processor, e.g. "amd-epyc-2-cores", or an accelerator.
std::string machine_name();

}  // namespace lethe
