// A strategy as one text: what its files, includes, params and definitions come to.
#include "print.h"

#include <algorithm>

#include "directives.h"

namespace piper {
namespace {

using fields::object;

class StrategyPrinter {
 public:
  explicit StrategyPrinter(const Strategy& strategy) : s_(strategy) {}

  std::string run() {
    text_ = "piper: 1\n";
    if (!s_.mesh.empty()) {
      Map mesh;
      for (const MeshAxis& axis : s_.mesh)
        if (axis.twins_of.empty()) mesh.add(axis.name, std::to_string(axis.size));
      line("mesh", mesh.text());
    }
    model();
    const std::string train = print_block(object("train"), &s_, 2);
    if (!train.empty()) text_ += fmt::format("train:{}\n", train);
    versions();
    annotate();
    directives();
    return std::move(text_);
  }

 private:
  void line(std::string_view name, const std::string& value) {
    text_ += fmt::format("{}: {}\n", name, value);
  }
  void section(std::string_view name, const std::string& lines) {
    if (!lines.empty()) text_ += fmt::format("{}:\n{}", name, lines);
  }

  void input_section() {
    std::vector<InputBinding> inputs = s_.inputs;
    std::sort(inputs.begin(), inputs.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    std::string lines;
    for (const InputBinding& one : inputs)
      lines += fmt::format("  {}: {}\n", print_key(one.name), print_map(object("input"), &one));
    section("inputs", lines);
  }

  // What names no order is sorted.
  void model() {
    input_section();
    auto dims = s_.dims;
    std::ranges::sort(dims, {}, &DimSize::name);
    Map sizes;
    for (const DimSize& dim : dims) sizes.add(dim.name, std::to_string(dim.size));
    if (!dims.empty()) line("dims", sizes.text());
    std::string lines;
    for (const ParamRule& rule : s_.parameters)
      lines += fmt::format("  - {}\n", print_entries(object("parameter"), &rule));
    section("parameters", lines);
    const auto term = [](const LossTerm& one) { return print_map(object("loss"), &one); };
    if (s_.loss.size() == 1) return line("loss", term(s_.loss[0]));
    lines = "";
    for (const LossTerm& one : s_.loss) lines += fmt::format("  - {}\n", term(one));
    section("loss", lines);
  }

  void versions() {
    const auto& all = s_.weight_versions;
    if (all.size() == 1 && all[0].where.empty() && all[0].versions.names().empty())
      return line("weight_versions", print_expr(all[0].versions));
    std::string lines;
    for (const WeightVersions& one : all)
      lines += fmt::format("  - {}\n", print_map(object("weight_versions"), &one));
    section("weight_versions", lines);
  }

  void annotate() {
    const Annotate& annotate = s_.annotate;
    std::string lines = annotate.strict ? "  strict: true\n  rules:\n" : "";
    for (const auto& rule : annotate.rules)
      lines += fmt::format("{}  - {}\n", annotate.strict ? "  " : "", rule_of(rule));
    section("annotate", lines);
  }
  static std::string rule_of(const std::variant<AnnotateRule, BalanceRule>& rule) {
    if (const auto* balance = std::get_if<BalanceRule>(&rule))
      return "balance: " + print_map(object("balance"), balance);
    const auto& given = std::get<AnnotateRule>(rule);
    Map tags;
    for (const auto& [tag, value] : given.tags) tags.add(tag, print_expr(value));
    Map map;
    map.add("match", print_patterns(given.match.pattern()));
    const auto name = [](const auto& op) { return print_text(op.first); };
    if (!given.ops.empty()) map.add("ops", print_list(given.ops, name));
    return map.add("tags", tags.text()).text();
  }

  void directives() {
    std::string lines;
    for (const fields::Directive& directive : fields::directives())
      for (const std::string& text : directive.print(directive.keys, s_))
        lines += fmt::format("  - {}:{}\n", directive.keys.name, text);
    section("directives", lines);
  }

  const Strategy& s_;
  std::string text_;
};

}  // namespace

std::string print_strategy(const Strategy& strategy) { return StrategyPrinter(strategy).run(); }

}  // namespace piper
