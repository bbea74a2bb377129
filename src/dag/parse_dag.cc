#include <charconv>
#include <unordered_map>

#include "piper/dag.h"

namespace piper {
namespace {

// "word key=value key=value "label"" of one line.
struct Line {
  int number = 0;
  std::string word, label;
  std::vector<std::string> plain;                           // parts without '='
  std::vector<std::pair<std::string, std::string>> fields;  // in order
  std::string get(std::string_view key) const {
    for (const auto& [name, value] : fields)
      if (name == key) return value;
    return {};
  }
};

Line split_line(std::string_view text, int number) {
  Line line;
  line.number = number;
  if (const size_t quote = text.find(" \""); quote != text.npos && text.back() == '"') {
    line.label = text.substr(quote + 2, text.size() - quote - 3);
    text = text.substr(0, quote);
  }
  for (const std::string& part : split_text(text, ' ')) {
    const size_t equals = part.find('=');
    if (line.word.empty())
      line.word = part;
    else if (equals == part.npos)
      line.plain.push_back(part);
    else
      line.fields.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
  return line;
}

std::vector<std::string> split_list(const std::string& text) {
  return text.empty() ? std::vector<std::string>{} : split_text(text, ',');
}

class Parser {
 public:
  explicit Parser(Graph graph) {
    dag_.graph = std::move(graph);
    dag_.streams.clear();
    for (size_t v = 0; v < dag_.graph.values.size(); ++v)
      values_[dag_.graph.values[v].name] = ValueId(v);
  }

  Result<Dag> parse(std::string_view text) {
    int number = 0;
    for (const std::string& line : split_text(text, '\n')) {
      ++number;
      if (line.empty()) continue;
      if (!read(split_line(line, number)) || !problem_.empty())
        return fail(SourceSpan{"dag", number, 1}, "{}",
                    problem_.empty() ? "not a line of a DAG" : problem_);
    }
    return std::move(dag_);
  }

 private:
  // The first problem is kept; readers go on with harmless values.
  int64_t integer(const std::string& text, int64_t otherwise) {
    if (text.empty()) return otherwise;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      note(fmt::format("'{}' is not an integer", text));
    return value;
  }
  int32_t small(const std::string& text, int32_t otherwise) {
    return static_cast<int32_t>(integer(text, otherwise));
  }
  void note(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
  }
  ValueId value(const std::string& name) {
    const auto it = values_.find(name);
    if (it == values_.end()) note(fmt::format("no value '{}'", name));
    return it == values_.end() ? ValueId(size_t{0}) : it->second;
  }
  ItemId item(const std::string& name) {
    const auto it = items_.find(name);
    if (it == items_.end()) note(fmt::format("no item '{}'", name));
    return it == items_.end() ? ItemId(size_t{0}) : it->second;
  }
  template <class List, class Read>
  void read_list(const std::string& text, List& into, Read read) {
    for (const std::string& part : split_list(text)) into.push_back(read(part));
  }

  bool read(const Line& line) {
    if (line.word == "mesh") return read_mesh(line);
    if (line.word == "batch") return read_batch(line);
    if (line.word == "streams") return read_streams(line);
    if (line.word == "copy") return read_copy(line);
    if (line.word == "variant") return read_variant(line);
    if (line.word == "tags")
      return line.plain.size() == 1 && (dag_.region_tags = split_list(line.plain[0]), true);
    if (line.word == "round") return read_round(line);
    if (line.word == "part") return read_part(line);
    if (line.word == "version") return read_version(line);
    if (line.word == "value") return read_value(line);
    if (line.word == "cell") return read_cell(line);
    if (line.word == "sum") return read_sum(line);
    if (line.word == "chunk") return read_chunk(line);
    if (line.word == "item") return read_item(line);
    if (line.word == "task") return read_task(line);
    if (line.word == "offload") return read_offload(line);
    if (line.word == "report") return read_report(line);
    return false;
  }
  bool read_mesh(const Line& line) {
    for (const auto& [name, rest] : line.fields) {
      const auto parts = split_text(rest, ':');
      DagAxis axis;
      axis.name = name;
      axis.size = integer(parts[0], 1);
      for (const std::string& part : parts) {
        axis.placed |= part == "placed";
        axis.replicated |= part == "replicated";
      }
      dag_.mesh.push_back(std::move(axis));
    }
    return true;
  }
  bool read_batch(const Line& line) {
    dag_.replicas_in_turn = integer(line.get("replicas_in_turn"), 1);
    dag_.microbatches = integer(line.get("microbatches"), 1);
    dag_.split_backward = line.get("split_backward") == "1";
    read_list(line.get("groups"), dag_.group_of,
              [&](const std::string& group) { return small(group, 0); });
    read_list(line.get("variants"), dag_.variants.of_micro,
              [&](const std::string& variant) { return small(variant, 0); });
    return true;
  }
  bool read_copy(const Line& line) {
    dag_.variants.copies.emplace_back(value(line.get("value")), value(line.get("of")));
    return true;
  }
  bool read_variant(const Line& line) {
    read_list(line.get("makes"), dag_.variants.made.emplace_back(),
              [&](const std::string& v) { return value(v); });
    return true;
  }
  bool read_streams(const Line& line) {
    if (line.plain.size() != 1) return false;
    for (const std::string& text : split_list(line.plain[0])) {
      const auto parts = split_text(text, ':');
      if (parts.size() != 1 && parts.size() != 3) return false;
      TaskStream stream{parts[0]};
      if (parts.size() == 3) stream.priority = small(parts[1], 0);
      if (parts.size() == 3) stream.sms = integer(parts[2], 0);
      dag_.streams.push_back(std::move(stream));
    }
    dag_.bucket_bytes = integer(line.get("bucket"), 0);
    return true;
  }
  bool read_round(const Line& line) {
    SumRound& round = dag_.rounds.emplace_back();
    round.size = integer(line.get("size"), 1);
    round.stride = integer(line.get("stride"), 1);
    round.stream = small(line.get("stream"), 0);
    read_axes(line.get("axes"), round.axes);
    const std::string dtype = line.get("dtype");
    if (!dtype.empty()) round.dtype = parse_dtype(dtype);
    return dtype.empty() || round.dtype;
  }
  bool read_part(const Line& line) {
    const auto whole = type(line.get("whole"));
    if (!whole) return false;
    const std::string param = line.get("param");
    const auto gather =
        std::find(std::begin(kGatherNames), std::end(kGatherNames), line.get("gather"));
    if (gather == std::end(kGatherNames)) return false;
    Part part{value(line.get("value")), param.empty() ? ValueId() : value(param), *whole};
    read_axes(line.get("over"), part.over);
    part.gather = static_cast<Gather>(gather - std::begin(kGatherNames));
    part.stream = small(line.get("stream"), 0);
    part.distance = small(line.get("distance"), 0);
    dag_.parts.push_back(std::move(part));
    return true;
  }
  bool read_version(const Line& line) {
    dag_.versions.push_back({value(line.get("newest")), value(line.get("previous"))});
    return true;
  }
  // "f32[2,3]"
  std::optional<TensorType> type(const std::string& text) {
    const size_t bracket = text.find('[');
    if (bracket == text.npos || text.back() != ']') return std::nullopt;
    const auto dtype = parse_dtype(text.substr(0, bracket));
    if (!dtype) return std::nullopt;
    TensorType type;
    type.dtype = *dtype;
    for (const std::string& dim : split_list(text.substr(bracket + 1, text.size() - bracket - 2)))
      type.shape.push_back(integer(dim, 0));
    return type;
  }
  bool read_value(const Line& line) {
    const std::string text = line.plain.empty() ? "" : line.plain[0];
    const size_t colon = text.rfind(':');
    if (colon == text.npos) return false;
    Value value;
    value.name = text.substr(0, colon);
    const auto type_read = type(text.substr(colon + 1));
    if (!type_read) return false;
    value.type = *type_read;
    const std::string name = value.name;
    if (!values_.count(name)) values_[name] = dag_.graph.add_value(std::move(value));
    return true;
  }
  bool read_cell(const Line& line) {
    dag_.cells.emplace_back();
    if (!line.plain.empty())
      read_list(line.plain[0], dag_.cells.back(),
                [&](const std::string& c) { return small(c, -1); });
    return dag_.cells.back().size() == dag_.mesh.size();
  }
  template <class Axes>
  void read_axes(const std::string& names, Axes& axes) const {
    for (const std::string& name : split_list(names))
      for (size_t a = 0; a < dag_.mesh.size(); ++a)
        if (dag_.mesh[a].name == name) axes.push_back(static_cast<int32_t>(a));
  }
  bool read_sum(const Line& line) {
    Sum sum;
    sum.value = value(line.get("value"));
    read_list(line.get("uses"), sum.uses, [&](const std::string& v) { return value(v); });
    read_list(line.get("rounds"), sum.rounds,
              [&](const std::string& round) { return small(round, 0); });
    if (!line.get("part").empty()) sum.part = value(line.get("part"));
    sum.each_micro = line.get("each_micro") == "1";
    sum.name = line.label;
    dag_.sums.push_back(std::move(sum));
    return true;
  }
  NodeId node(const std::string& output) {
    const NodeId node = dag_.graph.value(value(output)).producer;
    if (!node.valid()) note(fmt::format("no node makes '{}'", output));
    return node;
  }
  bool read_chunk(const Line& line) {
    if (line.plain.size() != 1 || line.plain[0].size() != 1) return false;
    Chunk chunk;
    chunk.pass = line.plain[0][0];
    chunk.cell = small(line.get("cell"), 0);
    chunk.name = line.label;
    read_list(line.get("tags"), chunk.tags,
              [&](const std::string& t) { return t == "-" ? kNoTag : small(t, 0); });
    read_list(line.get("groups"), chunk.groups,
              [&](const std::string& group) { return small(group, 0); });
    read_list(line.get("variants"), chunk.variants,
              [&](const std::string& variant) { return small(variant, 0); });
    read_list(line.get("nodes"), chunk.nodes, [&](const std::string& v) { return node(v); });
    read_list(line.get("reads"), chunk.reads, [&](const std::string& v) { return value(v); });
    read_list(line.get("writes"), chunk.writes, [&](const std::string& v) { return value(v); });
    dag_.chunks.push_back(std::move(chunk));
    return true;
  }
  bool read_item(const Line& line) {
    if (line.plain.size() != 1 || line.plain[0].size() < 2 || line.plain[0][0] != '%') return false;
    std::string name = line.plain[0].substr(1);
    Item item_read;
    if (const size_t slash = name.rfind('/'); dag_.cells.size() > 1) {
      if (slash == name.npos) return false;
      item_read.cell = small(name.substr(slash + 1), 0);
      name.resize(slash);
    }
    if (const size_t at = name.rfind('@'); at != name.npos && !values_.count(name)) {
      item_read.micro = small(name.substr(at + 1), -1);
      name.resize(at);
    }
    item_read.value = value(name);
    if (!line.get("alias").empty()) item_read.alias = item(line.get("alias"));
    item_read.sum = small(line.get("sum"), -1);
    items_[line.plain[0]] = ItemId(dag_.items.size());
    dag_.items.push_back(item_read);
    return true;
  }
  bool read_task(const Line& line) {
    if (line.plain.size() != 1) return false;
    Task task;
    size_t kind = 0;
    while (kind < std::size(kTaskKindNames) && line.plain[0] != kTaskKindNames[kind]) ++kind;
    if (kind == std::size(kTaskKindNames)) return false;
    task.kind = static_cast<TaskKind>(kind);
    task.cell = small(line.get("cell"), 0);
    task.micro = small(line.get("micro"), -1);
    task.micros = small(line.get("micros"), 1);
    task.peer = small(line.get("peer"), -1);
    std::string label = line.label;
    const std::string micro = print_label(dag_, task);
    if (!label.ends_with(micro)) note(fmt::format("'{}' does not end with '{}'", label, micro));
    label.resize(label.size() - std::min(label.size(), micro.size()));
    task.label = static_cast<int32_t>(dag_.labels.size());
    dag_.labels.push_back(std::move(label));
    if (!line.get("pass").empty()) task.pass = line.get("pass")[0];
    if (!line.get("chunk").empty())
      task.chunk = ChunkId(static_cast<size_t>(integer(line.get("chunk"), 0)));
    if (task.chunk.valid() && task.chunk.index() >= dag_.chunks.size()) return false;
    for (size_t s = 0; s < dag_.streams.size(); ++s)
      if (dag_.streams[s].name == line.get("stream")) task.stream = static_cast<int32_t>(s);
    const std::string distance = line.get("distance");
    task.distance = distance == "earliest" ? kEarliest : small(distance, 0);
    read_axes(line.get("group"), task.group);
    read_list(line.get("reads"), task.reads, [&](const std::string& i) { return item(i); });
    read_list(line.get("writes"), task.writes, [&](const std::string& i) { return item(i); });
    if (const std::string within = line.get("within"); !within.empty())
      task.within = TaskId(static_cast<size_t>(integer(within, 0)));
    if (task.within.valid() && task.within.index() >= dag_.tasks.size()) return false;
    read_list(line.get("nodes"), task.nodes, [&](const std::string& v) { return node(v); });
    for (const auto& [key, text] : line.fields)
      if ((key == "reduced" && !task.accumulates.empty() &&
           (task.accumulates.back().reduced = item(text), false)) ||
          (key == "add" && !read_add(text, task)) ||
          (key == "combine" && !read_combine(text, task)))
        return false;
    dag_.tasks.push_back(std::move(task));
    return true;
  }
  // %into+=value:sum:use
  bool read_add(const std::string& text, Task& task) {
    const size_t plus = text.find("+="), last = text.rfind(':'), middle = text.rfind(':', last - 1);
    if (plus == text.npos || last == text.npos || middle == text.npos || middle < plus)
      return false;
    task.accumulates.push_back({value(text.substr(plus + 2, middle - plus - 2)),
                                item(text.substr(0, plus)),
                                small(text.substr(middle + 1, last - middle - 1), 0),
                                small(text.substr(last + 1), 0),
                                {}});
    return true;
  }
  // %into=%from,%from:sum
  bool read_combine(const std::string& text, Task& task) {
    const size_t equals = text.find('='), last = text.rfind(':');
    if (equals == text.npos || last == text.npos || last < equals) return false;
    Combine combine;
    combine.into = item(text.substr(0, equals));
    read_list(text.substr(equals + 1, last - equals - 1), combine.from,
              [&](const std::string& i) { return item(i); });
    combine.sum = small(text.substr(last + 1), 0);
    task.combines.push_back(std::move(combine));
    return true;
  }
  bool read_offload(const Line& line) {
    if (line.plain.size() != 1) return false;
    Offload offload;
    offload.optimizer = line.plain[0] == "optimizer";
    offload.distance = small(line.get("distance"), 1);
    offload.in_flight = small(line.get("in_flight"), 1);
    offload.out_stream = small(line.get("out"), 0);
    offload.in_stream = small(line.get("in"), 0);
    read_list(line.get("items"), offload.items, [&](const std::string& i) { return item(i); });
    dag_.offloads.push_back(std::move(offload));
    return true;
  }
  bool read_report(const Line& line) {
    const auto cell = static_cast<size_t>(integer(line.get("cell"), 0));
    if (cell >= dag_.cells.size()) return false;
    if (dag_.reports.size() <= cell) dag_.reports.resize(cell + 1);
    dag_.reports[cell].emplace_back(line.label, item(line.get("item")));
    return true;
  }

  Dag dag_;
  std::unordered_map<std::string, ValueId> values_;
  std::unordered_map<std::string, ItemId> items_;
  std::string problem_;
};

}  // namespace

Result<Dag> parse_dag(Graph graph, std::string_view text) {
  return Parser(std::move(graph)).parse(text);
}

}  // namespace piper
