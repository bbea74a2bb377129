// Reads the text form of DAGs.
#include "piper/planner/make_dag.h"
#include "text.h"

namespace piper {
namespace {

// Finds an id by the text that stands for it; the first one where there is none.
template <class Named>
void find(LineReader& line, const Named& named, std::string_view text,
          typename Named::mapped_type& to) {
  const auto found = named.find(std::string(text));
  if (found == named.end()) line.wrong(fmt::format("nothing has the name '{}'", text));
  to = found == named.end() ? typename Named::mapped_type(size_t{0}) : found->second;
}

template <class Id>
void read_position(LineReader& line, std::string_view text, size_t count, Id& to) {
  line.read(text, to.value);
  if (!to.valid() || to.index() >= count) line.wrong(fmt::format("'{}' is not there", text));
}

class Parser {
 public:
  explicit Parser(Graph graph) {
    dag.graph = std::move(graph);
    dag.streams.clear();
    for (size_t v = 0; v < dag.graph.values.size(); ++v)
      names_.values[print_word(dag.graph.values[v].name)] = ValueId(v);
  }

  void parse(LineReader& line) {
    const std::string_view word = line.raw();
    bool known = false;
    each_table(dag, [&](const char* name, auto& table) {
      if (word != name) return;
      known = true;
      table.push_back({});
      read(line, table.back());
    });
    if (known) return;
    if (word == "dag") return fields(line, dag);
    if (word == "variants") return fields(line, dag.variants);
    if (word == "value") return parse_value(line);
    if (word == "report") return parse_report(line);
    if (word == "add" && !dag.tasks.empty()) return part(line, dag.tasks.back().accumulates);
    if (word == "combine" && !dag.tasks.empty()) return part(line, dag.tasks.back().combines);
    line.wrong(fmt::format("a line cannot start with '{}'", word));
  }

  Dag dag;

 private:
  template <class X>
  void fields(LineReader& line, X& to) {
    read_fields(line, to, names_);
  }
  template <class Parts>
  void part(LineReader& line, Parts& parts) {
    parts.push_back({});
    fields(line, parts.back());
  }

  template <class X>
  void read(LineReader& line, X& to) {
    fields(line, to);
  }
  void read(LineReader& line, Item& item) {
    fields(line, item);
    if (!item.value.valid()) return line.wrong("an item is of a value");
    const ItemId id(dag.items.size() - 1);
    names_.items[names_.print(id)] = id;
  }
  // The label says the microbatch, too.
  void read(LineReader& line, Task& task) {
    read_words(line, task, names_);
    auto label = line.next<std::string>();
    line.read_fields();
    read_keys(line, task, names_);
    const std::string micro = print_label(dag, task);
    if (!label.ends_with(micro))
      line.wrong(fmt::format("'{}' does not end with '{}'", label, micro));
    label.resize(label.size() - std::min(label.size(), micro.size()));
    task.label = static_cast<int32_t>(dag.labels.size());
    dag.labels.push_back(std::move(label));
  }

  // Reads a value of no node: a part of a state, say.
  void parse_value(LineReader& line) {
    Value value;
    value.name = line.word();
    value.type = line.next<TensorType>();
    const std::string name = print_word(value.name);
    if (!names_.values.contains(name)) names_.values[name] = dag.graph.add_value(std::move(value));
  }
  void parse_report(LineReader& line) {
    const auto cell = line.next<uint32_t>();
    auto name = line.next<std::string>();
    ItemId item;
    names_.read(line, line.raw(), item);
    if (cell >= dag.cells.size()) return line.wrong(fmt::format("there is no cell {}", cell));
    if (dag.reports.size() <= cell) dag.reports.resize(cell + 1);
    dag.reports[cell].emplace_back(std::move(name), item);
  }

  DagNames names_{dag};
};

}  // namespace

void DagNames::read(LineReader& line, std::string_view text, ValueId& to) const {
  find(line, values, text, to);
}
void DagNames::read(LineReader& line, std::string_view text, NodeId& to) const {
  ValueId output;
  read(line, text, output);
  if (output.index() < dag.graph.values.size()) to = dag.graph.value(output).producer;
  if (!to.valid()) line.wrong(fmt::format("no node makes '{}'", text));
}
void DagNames::read(LineReader& line, std::string_view text, ItemId& to) const {
  find(line, items, text, to);
}
void DagNames::read(LineReader& line, std::string_view text, ChunkId& to) const {
  read_position(line, text, dag.chunks.size(), to);
}
void DagNames::read(LineReader& line, std::string_view text, TaskId& to) const {
  read_position(line, text, dag.tasks.size(), to);
}
void DagNames::read(LineReader& line, std::string_view text,
                    std::pair<ValueId, ValueId>& to) const {
  const auto pair = line.items(text);
  if (pair.size() != 2) return line.wrong(fmt::format("'{}' is no pair", text));
  read(line, pair[0], to.first);
  read(line, pair[1], to.second);
}

Result<Dag> parse_dag(Graph graph, std::string_view text) {
  Parser parser(std::move(graph));
  PIPER_TRY(read_lines(text, "dag", [&](LineReader& line) { parser.parse(line); }));
  return std::move(parser.dag);
}

}  // namespace piper
