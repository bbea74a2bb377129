// Golden tests of the directives on two small models: what each says it did, and the tasks that result on every device.
#include "piper/directives.h"

#include "equivalence/jobs.h"
#include "golden.h"

namespace piper {
namespace {

golden::Section compile_case(const golden::Case& c) {
  const jobs::Folder folder;
  CompileOptions options;
  std::string model = c.text("model");
  while (!model.empty() && (model.back() == '\n' || model.back() == ' ')) model.pop_back();
  options.model = fmt::format("{}/tests/data/{}.onnx", PIPER_SOURCE_DIR, model);
  options.strategy = folder.write("strategy.yaml", c.text("strategy"));
  options.oracles = false;
  std::string schedule;
  options.dump = [&](std::string_view step, const std::function<std::string()>& text) {
    if (step == "schedule") schedule = text();
  };
  const auto compiled = compile(options);
  if (!compiled) {
    const Error& error = compiled.error();
    std::string text = fmt::format("strategy:{}:{}: {}", error.at.line, error.at.column, error.message);
    for (const std::string& note : error.notes) text += "\n" + note;
    return {"error", text};
  }
  std::string text;
  for (const Explanation& e : compiled->explanations) {
    text += fmt::format("{}: {}\n", e.at.line, e.directive);
    for (const std::string& line : e.lines) text += fmt::format("  {}\n", line);
  }
  return {"after", text + schedule};
}

TEST(Directives, Golden) { golden::run("directives/*.test", {"after", "error"}, compile_case); }

}  // namespace
}  // namespace piper
