// piperc MODEL --describe, whole texts.
#include "golden.h"
#include "piper/planner/compile.h"

namespace piper::describe_test {
namespace {

TEST(Describe, Golden) {
  const std::string folder = PIPER_SOURCE_DIR "/tests/data/";
  golden::run("describe/*.test", {"after", "error"}, [&](const golden::Case& c) {
    DescribeOptions options;
    const std::string model = c.text("model");
    options.model = folder + model.substr(0, model.find('\n')) + ".onnx";
    for (const std::string& dim : split_text(c.text("dims"), '\n')) {
      const size_t equals = dim.find('=');
      if (equals != dim.npos)
        options.dims.emplace_back(dim.substr(0, equals), std::stol(dim.substr(equals + 1)));
    }
    const auto described = describe(options);
    std::string text = described ? described->text : print_error(described.error());
    for (size_t at = text.find(folder); at != text.npos; at = text.find(folder))
      text.erase(at, folder.size());
    if (described && !described->supported) text += "(exit code 1)\n";
    return golden::Section{described ? "after" : "error", text};
  });
}

}  // namespace
}  // namespace piper::describe_test
