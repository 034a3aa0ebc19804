#include <iostream>
#include <memory>

#include "experiments/commands/commands.hpp"
#include "experiments/data/run_program.hpp"

namespace lethe {

void add_report(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("report", "Tables, plots and one page from the results that are there");
  auto tables = std::make_shared<bool>(false);
  command->add_flag("--tables", *tables, "Only rewrite the tables between the markers of README files");
  command->footer("For every folder of results/: a table and a plot of each claim, and report.html with all of them.");
  command->callback([tables, &place] {
    std::vector<std::string> call{LETHE_PYTHON, (place.root / "tools" / "report.py").string(), "--root",
                                  place.root.string()};
    if (*tables) call.push_back("--tables");
    std::cout << run_program(call);
  });
}

}  // namespace lethe
