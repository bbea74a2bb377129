// piper-verify: proves a plan set from its files alone.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "piper/verify.h"

int main(int argc, char** argv) {
  using namespace piper;
  std::string directory;
  CLI::App app{"Proves from the files alone that a plan set cannot deadlock or race, keeps to its stated memory, and sums every\n"
               "gradient over every use, microbatch and replica exactly once.",
               "piper-verify"};
  app.footer("\nExit codes: 0 proved; 2 wrong command line; 3 refused, with the reasons; 4 the files cannot be read as plans.");
  app.add_option("plans", directory, "directory that piperc wrote")->required()->type_name("DIR");
  app.set_version_flag("--version", "piper-verify 0.1.0");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  const auto set = read_plan_set(directory);
  if (!set) {
    std::fputs(print_error(set.error()).c_str(), stderr);
    return static_cast<int>(set.error().code);
  }
  const auto report = verify_plan_set(*set);
  if (!report) {
    std::fputs(print_error(report.error()).c_str(), stderr);
    return static_cast<int>(report.error().code);
  }
  for (const Finding& finding : report->findings) fmt::print("{}: {}\n", finding.rule, finding.text);
  if (!report->findings.empty()) return static_cast<int>(ExitCode::kRefused);
  fmt::print("{}: {} ranks in {} roles: {} instructions, {} transfers, {} collectives, {} sums: proved\n", directory, report->ranks,
             report->cells, report->instructions, report->transfers, report->collectives, report->sums);
  return 0;
}
