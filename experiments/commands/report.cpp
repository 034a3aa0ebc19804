#include <iostream>
#include <memory>

#include "experiments/commands/commands.hpp"
#include "experiments/data/run_program.hpp"

namespace lethe {

void add_report(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("report", "Tables, plots and one page from the results that are there");
  auto tables = std::make_shared<bool>(false);
  auto results = std::make_shared<std::string>();
  command->add_flag("--tables", *tables, "Only rewrite the tables between the markers of README files");
  command
      ->add_option("--results", *results,
                   "The folder of results; the checkout's own results also fill its README files")
      ->default_str("artefacts/results");
  command->footer(
      "For every machine below the folder of results: a table and a plot of each claim, and report.html with all of "
      "them, other measurements\n"
      "and one's own trainings. A damaged file is named, the rest is made, and the exit status is 1.");
  command->callback([tables, results, &place] {
    const auto folder = results->empty() ? place.results() : std::filesystem::absolute(*results);
    const std::filesystem::path tools = std::filesystem::path(LETHE_ROOT) / "tools";
    std::vector<std::string> call{LETHE_PYTHON, (tools / "report.py").string(), "--root",  place.suite().string(),
                                  "--results",  folder.string(),                "--models", place.models().string()};
    if (*tables) call.push_back("--tables");
    try {
      std::cout << run_program(call);
    } catch (const ProgramFailed& error) {  // a damaged file was named; the pages of the others are written
      std::cout << error.output();
      throw;
    }
  });
}

}  // namespace lethe
