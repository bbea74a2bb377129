// Conditions on tags, by what they choose: the layers of a small model whose ops carry two tags.
#include "equivalence/jobs.h"

namespace piper::where_test {
namespace {

// Of the 5 layers, each with a tag `layer`, the first two also with `early` (1 and 0), those that a
// recompute directive with this condition chooses: "0 1 4", or the error.
std::string chosen(const std::string& where) {
  const Folder folder;
  std::string layers;
  for (int layer = 0; layer < 5; ++layer) {
    CompileOptions options;
    options.model = PIPER_SOURCE_DIR "/tests/data/mlp.onnx";
    options.oracles = false;
    options.strategy = folder.write(
        "strategy.yaml",
        fmt::format("piper: 1\n{}train: {{global_batch: 8}}\nannotate:\n"
                    "  - {{match: \"**\", tags: {{layer: 4}}}}\n"
                    "  - {{match: \"model/{{at}}/**\", tags: {{layer: at}}}}\n"
                    "  - {{match: \"model/0/**\", tags: {{early: 1}}}}\n"
                    "  - {{match: \"model/1/**\", tags: {{early: 0}}}}\n"
                    "directives:\n  - recompute: {{match: \"model/{}/**\", where: {}}}\n",
                    where.find("two") == std::string::npos ? "" : "params: {two: 2}\n", layer,
                    where));
    const auto compiled = compile(options);
    if (compiled) {
      layers += fmt::format("{}{}", layers.empty() ? "" : " ", layer);
      continue;
    }
    const std::string& message = compiled.error().message;
    // The backward pass need not read what a layer makes.
    if (message.starts_with("recompute: the backward pass reads nothing")) {
      layers += fmt::format("{}{}", layers.empty() ? "" : " ", layer);
    } else if (!message.starts_with("recompute: matches no forward op")) {
      return message;
    }
  }
  return layers;
}

TEST(Where, ChoosesByTags) {
  const std::pair<const char*, const char*> cases[] = {
      {"{layer: 2}", "2"},
      {"{layer: two + 1}", "3"},
      {"{layer: \"*\"}", "0 1 2 3 4"},
      {"{early: \"*\"}", "0 1"},
      {"{early: absent}", "2 3 4"},
      {"{layer: absent}", ""},
      {"{layer: 1..3}", "1 2"},
      {"{layer: two..two * 2}", "2 3"},
      {"{layer: 3..3}", ""},
      {"{layer: [0, $two, 9]}", "0 2"},
      {"{layer: \"<2\"}", "0 1"},
      {"{layer: \"<=2\"}", "0 1 2"},
      {"{layer: \">2\"}", "3 4"},
      {"{layer: \">=2\"}", "2 3 4"},
      {"{layer: \"!=two\"}", "0 1 3 4"},
      {"{layer: [0, 2..4]}", "0 2 3"},
      {"{layer: \"!two\"}", "0 1 3 4"},
      {"{layer: \"!1..3\"}", "0 3 4"},
      {"{layer: [\"!0\", \"!two..4\"]}", "1 4"},
      {"{layer: \"layer % 2 == 1 || layer == two\"}", "1 2 3"},
      {"{early: \"!0\"}", "0"},
      // A comparison does not hold for what is not there.
      {"{early: \"!=0\"}", "0"},
      // All conditions of a map hold; a variable is bound for those behind it.
      {"{layer: \">0\", early: \"*\"}", "1"},
      {"{layer: l, early: l}", ""},
      {"{layer: l, early: 1 - l}", "0 1"},
      {"{layer: l, early: \"<l\"}", "1"},
      {"{layer: l, early: [l, l + 1]}", "0"},
      {"{early: e, layer: 0..e}", "0"},
      {"{early: absent, layer: \"<3\"}", "2"},
  };
  for (const auto& [where, layers] : cases) EXPECT_EQ(chosen(where), layers) << where;
}

// Tasks that a stream directive moves in two stages of two replicas: "2 recv, 2 send", or the
// error.
std::string moved(const std::string& where) {
  const Folder folder;
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/tests/data/mlp.onnx";
  options.oracles = false;
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\ninclude: {}/strategies/1f1b.yaml\nparams: {{stages: 2, dp: 2, "
                  "microbatches: 2}}\ntrain: {{global_batch: 8}}\n"
                  "directives:\n  - stream: {{where: {}, name: own}}\n",
                  PIPER_SOURCE_DIR, where));
  const auto compiled = compile(options);
  if (!compiled) return compiled.error().message;
  for (const Explanation& explanation : compiled->explanations)
    for (const std::string& line : explanation.lines)
      if (line.starts_with("'own': ")) return line.substr(7);
  return "";
}

TEST(Where, ChoosesTasks) {
  const std::pair<const char*, const char*> cases[] = {
      {"{kind: send}", "4 send"},
      {"{kind: [send, recv], pass: F}", "2 recv, 2 send"},
      {"{kind: send, mb: 1}", "2 send"},
      {"{kind: send, mb: \"mb % 2 == 0\"}", "2 send"},
      {"{kind: send, stage: s, mb: \"mb % 2 == s\"}", "2 send"},
      {"{kind: [send, recv], pass: \"!B\"}", "2 recv, 2 send"},
      {"{kind: [\"!compute\", \"!input\", \"!recv\", \"!all_reduce\"]}", "4 send"},
      {"{kind: recv, value: [\"linear_2/*\", \"d_*\", \"!d_*\"]}", "2 recv"},
      {"{kind: send, mb: \">0\", pass: B}", "1 send"},
      {"{kind: recv, value: \"linear_2/MatMul*\"}", "2 recv"},
      {"{kind: recv, value: [\"linear_2/*\", \"d_*\"]}", "4 recv"},
      // A parameter's name or path stands for the parameter and for its gradient.
      {"{kind: compute, pass: F, value: model.0.bias}", "2 compute"},
      {"{kind: all_reduce, value: \"model/0/weight\"}", "1 all_reduce"},
      {"{kind: all_reduce, value: \"model.4.*\"}", "2 all_reduce"},
      {"{kind: all_reduce, value: \"model.4.bias.grad\", stage: 1}", "1 all_reduce"},
      {"{kind: send, value: model.0.bias}", "stream: matches nothing"},
      {"{value: []}", "the list of patterns is empty"},
      {"{value: \"!a\"}", "not supported: a 'value' that only takes out"},
      {"{kind: [send, \"!recv\"]}", "'!' is before all that a set takes out, or before none"},
      {"{value: {a: 1}}", "expected a list of patterns, found a map"},
      {"{value: \"a/{b\"}", "braces in the pattern 'a/{b' must hold a name, numbers or words"},
      {"{kind: sendd}", "unknown kind 'sendd' (did you mean 'send'?)"},
      {"{valu: a}", "unknown tag 'valu' (did you mean 'value'?)"},
  };
  for (const auto& [where, tasks] : cases) EXPECT_EQ(moved(where), tasks) << where;
  EXPECT_EQ(chosen("{value: a}"), "'value' chooses among tasks, which are not there yet");
  EXPECT_EQ(chosen("{kind: send}"), "'kind' chooses among tasks, which are not there yet");
}

TEST(Where, ErrorsAreSaid) {
  EXPECT_EQ(chosen("{layr: 1}"), "unknown tag 'layr' (did you mean 'layer'?)");
  EXPECT_EQ(chosen("{layer: l, early: m + 1}"), "unknown name 'm' (did you mean 'M'?)");
  EXPECT_EQ(chosen("{layer: \"<k\"}"), "unknown name 'k'");
  EXPECT_EQ(chosen("{layer: []}"), "the set is empty");
  EXPECT_EQ(chosen("{layer: two / 0}"), "division by zero");
}

}  // namespace
}  // namespace piper::where_test
