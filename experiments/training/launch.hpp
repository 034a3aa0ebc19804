#pragma once
// Several processes of one program on this machine, the ranks of a World.

#include <functional>
#include <string>
#include <vector>

namespace lethe {

/// Runs a program `processes` times, with the environment that RankPlace::in reads, and waits for all. It serves the ranks' store.
/// Where one fails, the others are ended at once. OMP_NUM_THREADS, unless it is set, is each one's share of the cores.
///
/// reads   arguments: the first of them is the program's path; check: called repeatedly; where it throws, rank 0 gets a SIGTERM, once
/// throws  ProgramFailed where a process ends with a status other than 0: it has written the reason to standard error; std::runtime_error
///         "rank R: …" where a signal ends one
void launch(const std::vector<std::string>& arguments, int processes, const std::function<void()>& check = {});

}  // namespace lethe
