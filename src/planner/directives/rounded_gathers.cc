// `gather: {dtype: bf16}` of `replicate`: parameters travel in 16 bits. Where the model reads them
// in f32, it reads what the rounded ones are in f32; the optimizer keeps them as they are.
#include <algorithm>
#include <set>

#include "match.h"

namespace piper {
namespace {

class Rounder {
 public:
  Rounder(Graph& graph, const Cut& cut) : graph_(graph), cut_(cut), readers_(readers(graph)) {}

  static Explanation report_of(const Replicate& entry, int64_t rounded, int64_t read_so) {
    Explanation report{entry.gather_dtype_at, "replicate", {}};
    const std::string type(info(*entry.gather_dtype).name);
    if (read_so > 0)
      report.lines.push_back(fmt::format(
          "{} parameters are read in {} and travel so: nothing is lost", read_so, type));
    if (rounded > 0)
      report.lines.push_back(fmt::format(
          "note: {} parameters are rounded to {} where they are read, and travel so: each number "
          "differs by at most 1/{} of itself{}; the optimizer has them in f32",
          rounded, type, *entry.gather_dtype == DType::kBF16 ? 256 : 2048,
          *entry.gather_dtype == DType::kBF16 ? "" : " within the range of f16"));
    return report;
  }

  // Rounds what an entry speaks of.
  Result<Explanation> run(const Replicate& entry, size_t line) {
    int64_t rounded = 0, read_so = 0;
    for (const Param& param : graph_.params) {
      const std::vector<size_t>& lines = cut_.lines_of.at(param.name);
      if (std::ranges::count(lines, line) == 0 || !param.gradient.valid()) continue;
      std::vector<NodeId> by;
      for (const NodeId id : readers_[param.value.index()])
        if (graph_.node(id).pass != Pass::kU && !casts(id, *entry.gather_dtype)) by.push_back(id);
      if (by.empty() || graph_.value(param.value).type.dtype != DType::kF32) {
        ++read_so;
        continue;
      }
      if (!entry.lossy) return lossless(entry, param, graph_.node(by[0]));
      for (const NodeId id : by) read_rounded(id, param, *entry.gather_dtype);
      ++rounded;
    }
    return report_of(entry, rounded, read_so);
  }

 private:
  bool casts(NodeId id, DType type) const {
    const Node& node = graph_.node(id);
    return node.op == "Cast" && graph_.value(node.outputs[0]).type.dtype == type;
  }
  static Error lossless(const Replicate& entry, const Param& param, const Node& reader) {
    return fail(entry.gather_dtype_at,
                "replicate: '{}' travels in {}, but {} '{}' reads it in f32: it would be rounded",
                quote_control(param.name), info(*entry.gather_dtype).name, reader.op,
                quote_control(reader.name))
        .with_note("help: 'precision: {compute: bf16}' reads it so, and the gathers follow")
        .with_note("help: 'lossy: true' beside 'dtype' rounds it for the ops that read it");
  }
  // An op and its pass read what is cast there and back.
  void read_rounded(NodeId id, const Param& param, DType type) {
    ValueId from = param.value;
    for (const DType to : {type, DType::kF32}) {
      Node cast = graph_.node(id);
      cast.op = "Cast";
      cast.name = fmt::format("{}.{}.{}", graph_.node(id).name, param.name, info(to).name);
      cast.attrs = {{"to", std::string(info(to).name)}};
      cast.inputs = {from};
      cast.outputs.clear();
      const TensorType made{to, graph_.value(param.value).type.shape};
      from = graph_.node(graph_.add_node(std::move(cast), std::span(&made, 1))).outputs[0];
    }
    std::ranges::replace(graph_.node(id).inputs, param.value, from);
  }

  Graph& graph_;
  const Cut& cut_;
  const std::vector<std::vector<NodeId>> readers_;
};

}  // namespace

Result<Graph> round_gathered(Graph step, const Strategy& strategy, const Cut& cut,
                             Explanations& out) {
  const auto is_asked = [](const Replicate& one) { return one.gather_dtype.has_value(); };
  if (std::ranges::none_of(strategy.replicates, is_asked)) return step;
  Rounder rounder(step, cut);
  for (size_t line = 0; line < strategy.replicates.size(); ++line) {
    if (!is_asked(strategy.replicates[line])) continue;
    PIPER_ASSIGN(Explanation report, rounder.run(strategy.replicates[line], line));
    out.push_back(std::move(report));
  }
  return in_topological_order(std::move(step));
}

}  // namespace piper
