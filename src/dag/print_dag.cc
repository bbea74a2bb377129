// One line per thing, "word key=value …"; lists are separated by commas without blanks, labels
// stand last and quoted.
#include "piper/dag.h"

namespace piper {
namespace {

template <class List, class Print>
std::string list(const List& things, Print print) {
  std::string text;
  for (const auto& thing : things) text += (text.empty() ? "" : ",") + print(thing);
  return text;
}
template <class List, class Print>
void field(std::string& line, std::string_view key, const List& things, Print print) {
  if (!things.empty()) line += fmt::format(" {}={}", key, list(things, print));
}

std::string print_chunk(const Dag& dag, const Chunk& chunk) {
  const Graph& graph = dag.graph;
  const auto value = [&](ValueId id) { return graph.value(id).name; };
  std::string line = fmt::format("chunk {} cell={}", chunk.pass, chunk.cell);
  field(line, "tags", chunk.tags,
        [](int32_t tag) { return tag == kNoTag ? std::string("-") : std::to_string(tag); });
  field(line, "groups", chunk.groups, [](int32_t group) { return std::to_string(group); });
  field(line, "variants", chunk.variants, [](int32_t variant) { return std::to_string(variant); });
  field(line, "nodes", chunk.nodes, [&](NodeId id) { return value(graph.node(id).outputs[0]); });
  field(line, "reads", chunk.reads, value);
  field(line, "writes", chunk.writes, value);
  return line + fmt::format(" \"{}\"\n", chunk.name);
}

std::string print_task(const Dag& dag, const Task& task) {
  const auto item = [&](ItemId id) { return print_item(dag, id); };
  std::string line =
      fmt::format("task {} cell={}", kTaskKindNames[static_cast<size_t>(task.kind)], task.cell);
  if (task.pass != '-') line += fmt::format(" pass={}", task.pass);
  if (task.chunk.valid()) line += fmt::format(" chunk={}", task.chunk.value);
  if (task.micro >= 0) line += fmt::format(" micro={}", task.micro);
  if (task.micros > 1) line += fmt::format(" micros={}", task.micros);
  if (task.peer >= 0) line += fmt::format(" peer={}", task.peer);
  if (task.stream > 0)
    line += fmt::format(" stream={}", dag.streams[static_cast<size_t>(task.stream)].name);
  if (task.distance == kEarliest)
    line += " distance=earliest";
  else if (task.distance > 0)
    line += fmt::format(" distance={}", task.distance);
  field(line, "group", task.group,
        [&](int32_t axis) { return dag.mesh[static_cast<size_t>(axis)].name; });
  field(line, "reads", task.reads, item);
  field(line, "writes", task.writes, item);
  if (task.within.valid()) line += fmt::format(" within={}", task.within.value);
  field(line, "nodes", task.nodes,
        [&](NodeId id) { return dag.graph.value(dag.graph.node(id).outputs[0]).name; });
  for (const Accumulate& a : task.accumulates) {
    line += fmt::format(" add={}+={}:{}:{}", item(a.into), dag.graph.value(a.contribution).name,
                        a.sum, a.use);
    if (a.reduced.valid()) line += fmt::format(" reduced={}", item(a.reduced));
  }
  for (const Combine& c : task.combines)
    line += fmt::format(" combine={}={}:{}", item(c.into), list(c.from, item), c.sum);
  return line + fmt::format(" \"{}\"\n", print_label(dag, task));
}

// "name", or "name:priority:sms".
std::string print_stream(const TaskStream& stream) {
  if (stream.priority == 0 && stream.sms == 0) return stream.name;
  return fmt::format("{}:{}:{}", stream.name, stream.priority, stream.sms);
}

std::string print_head(const Dag& dag) {
  std::string text = "mesh";
  for (const DagAxis& axis : dag.mesh)
    text += fmt::format(" {}={}{}{}", axis.name, axis.size, axis.placed ? ":placed" : "",
                        axis.replicated ? ":replicated" : "");
  text += fmt::format("\nbatch replicas_in_turn={} microbatches={} split_backward={}",
                      dag.replicas_in_turn, dag.microbatches, dag.split_backward ? 1 : 0);
  field(text, "groups", dag.group_of, [](int32_t group) { return std::to_string(group); });
  field(text, "variants", dag.variants.of_micro,
        [](int32_t variant) { return std::to_string(variant); });
  text += "\n";
  text += fmt::format("streams {} bucket={}\n", list(dag.streams, print_stream), dag.bucket_bytes);
  const auto axis = [&](int32_t a) { return dag.mesh[static_cast<size_t>(a)].name; };
  for (const SumRound& round : dag.rounds) {
    text +=
        fmt::format("round size={} stride={} stream={}", round.size, round.stride, round.stream);
    if (round.dtype) text += fmt::format(" dtype={}", info(*round.dtype).name);
    field(text, "axes", round.axes, axis);
    text += "\n";
  }
  if (!dag.region_tags.empty()) text += fmt::format("tags {}\n", join(dag.region_tags, ","));
  for (const Value& value : dag.graph.values)
    if (value.kind == ValueKind::kNode && !value.producer.valid())
      text += fmt::format("value {}:{}\n", value.name, to_string(value.type));
  const auto name = [&](ValueId value) { return dag.graph.value(value).name; };
  for (const auto& [copy, original] : dag.variants.copies)
    text += fmt::format("copy value={} of={}\n", name(copy), name(original));
  for (const auto& made : dag.variants.made)
    text += made.empty() ? "variant\n" : fmt::format("variant makes={}\n", list(made, name));
  for (const Part& part : dag.parts)
    text +=
        fmt::format("part value={} whole={}{} over={} gather={} stream={} distance={}\n",
                    name(part.value), to_string(part.whole),
                    part.param.valid() ? " param=" + name(part.param) : "", list(part.over, axis),
                    kGatherNames[static_cast<size_t>(part.gather)], part.stream, part.distance);
  for (const Version& version : dag.versions)
    text += fmt::format("version newest={} previous={}\n", dag.graph.value(version.newest).name,
                        dag.graph.value(version.previous).name);
  for (const auto& cell : dag.cells)
    text += fmt::format("cell{}\n", cell.empty() ? "" : " " + list(cell, [](int32_t c) {
                                                          return std::to_string(c);
                                                        }));
  return text;
}

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
  std::string text = print_head(dag);
  for (const Sum& sum : dag.sums) {
    std::string line =
        fmt::format("sum value={} uses={}", dag.graph.value(sum.value).name,
                    list(sum.uses, [&](ValueId use) { return dag.graph.value(use).name; }));
    field(line, "rounds", sum.rounds, [](int32_t round) { return std::to_string(round); });
    if (sum.part.valid()) line += " part=" + dag.graph.value(sum.part).name;
    if (sum.each_micro) line += " each_micro=1";
    text += line + fmt::format(" \"{}\"\n", sum.name);
  }
  for (const Chunk& chunk : dag.chunks) text += print_chunk(dag, chunk);
  for (size_t i = 0; i < dag.items.size(); ++i) {
    const Item& item = dag.items[i];
    std::string line = "item " + print_item(dag, ItemId(i));
    if (item.alias.valid()) line += " alias=" + print_item(dag, item.alias);
    if (item.sum >= 0) line += fmt::format(" sum={}", item.sum);
    text += line + "\n";
  }
  for (const Task& task : dag.tasks) text += print_task(dag, task);
  for (const Offload& offload : dag.offloads) {
    std::string line =
        fmt::format("offload {} distance={} in_flight={} out={} in={}",
                    offload.optimizer ? "optimizer" : "activations", offload.distance,
                    offload.in_flight, offload.out_stream, offload.in_stream);
    field(line, "items", offload.items, [&](ItemId id) { return print_item(dag, id); });
    text += line + "\n";
  }
  for (size_t c = 0; c < dag.reports.size(); ++c)
    for (const auto& [name, item] : dag.reports[c])
      text += fmt::format("report cell={} item={} \"{}\"\n", c, print_item(dag, item), name);
  return text;
}

}  // namespace piper
