// A line for each thing, as fields.h lists what it has. Values have their names, nodes that of
// their first output, items "%name@microbatch/cell".
#include "fields.h"
#include "piper/base/field_text.h"

namespace piper {

namespace {

// Says what stands for the ids of a Dag.
struct DagNames {
  const Dag& dag;

  std::string print(ValueId id) const { return print_word(dag.graph.value(id).name); }
  std::string print(NodeId id) const { return print(dag.graph.node(id).outputs[0]); }
  std::string print(ItemId id) const {
    const Item& item = dag.items[id.index()];
    return fmt::format("%{}{}{}", print(item.value),
                       item.micro < 0 ? "" : fmt::format("@{}", item.micro),
                       dag.cells.size() > 1 ? fmt::format("/{}", item.cell) : "");
  }
  std::string print(ChunkId id) const { return std::to_string(id.value); }
  std::string print(TaskId id) const { return std::to_string(id.value); }
  std::string print(const std::pair<ValueId, ValueId>& copy) const {
    return fmt::format("[{},{}]", print(copy.first), print(copy.second));
  }
};

}  // namespace

std::string print_label(const Dag& dag, const Task& task) {
  std::string label;
  if (task.label >= 0) label = dag.labels[static_cast<size_t>(task.label)];
  if (task.micro < 0) return label;
  const bool oracle = dag.replicas_in_turn > 1;
  if (oracle) label += " replica=" + std::to_string(task.micro / dag.microbatches);
  label += " mb=" + std::to_string(oracle ? task.micro % dag.microbatches : task.micro);
  if (task.micros > 1) label += ".." + std::to_string(task.micro + task.micros);
  return label;
}

std::string print_item(const Dag& dag, ItemId id) {
  const Item& item = dag.items[id.index()];
  std::string text = "%" + dag.graph.value(item.value).name;
  if (item.micro >= 0) text += fmt::format("@{}", item.micro);
  if (dag.cells.size() > 1) text += fmt::format("/{}", item.cell);
  return text;
}

std::string print_dag(const Dag& dag) {
  const DagNames names{dag};
  std::string text;
  // What has its defaults only is a line only where it is an element of a table.
  const auto line = [&](std::string_view word, const auto& from, bool always = true) {
    std::string fields;
    print_words(fields, from, names);
    if constexpr (requires { from.label; }) fields += " " + quote(print_label(dag, from));
    print_keys(fields, from, names);
    if (always || !fields.empty()) text += fmt::format("{}{}\n", word, fields);
  };
  line("dag", dag);
  for (const Value& value : dag.graph.values)
    if (value.kind == ValueKind::kNode && !value.producer.valid())
      text += fmt::format("value {} {}\n", print_word(value.name), to_string(value.type));
  line("variants", dag.variants, false);
  each_table(dag, [&](const char* word, const auto& table) {
    for (const auto& from : table) {
      line(word, from);
      if constexpr (requires { from.combines; }) {
        for (const Accumulate& part : from.accumulates) line("  add", part);
        for (const Combine& part : from.combines) line("  combine", part);
      }
    }
  });
  for (size_t c = 0; c < dag.reports.size(); ++c)
    for (const auto& [name, item] : dag.reports[c])
      text += fmt::format("report {} {} {}\n", c, quote(name), names.print(item));
  return text;
}

}  // namespace piper
