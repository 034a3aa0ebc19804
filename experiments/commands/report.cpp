#include <iostream>

#include "experiments/commands/commands.hpp"
#include "experiments/data/run_program.hpp"

namespace lethe {

void add_report(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("report", "Tables, plots and one page from the results that are there");
  command->footer("Rewrites the tables between the markers of the README files too.");
  command->callback([&place] {
    std::cout << run_program({LETHE_PYTHON, (place.root / "tools" / "report.py").string()});
  });
}

}  // namespace lethe
