// Reads the text form of graphs. Called by tests that write their graphs as text.
#include "support/forms/parse_graph.h"

#include <algorithm>
#include <charconv>

#include "piper/base/text_form.h"

namespace piper {
namespace {

bool read_number(std::string_view digits, auto& value) {
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return !digits.empty() && read.ec == std::errc() && read.ptr == digits.data() + digits.size();
}

Result<Layout> parse_layout(std::string_view text) {
  if (text == "R") return Layout{};
  if (text == "P") return Layout{LayoutKind::kPartial};
  if (text == "M") return Layout{LayoutKind::kGreatest};
  if (text == "D") return Layout{LayoutKind::kRouted};
  Layout layout{LayoutKind::kSharded};
  layout.mirrored = text.ends_with("z");
  if (layout.mirrored) text.remove_suffix(1);
  const size_t slash = text.find('/');
  if (text.starts_with("S") && read_number(text.substr(1, slash - 1), layout.dim) &&
      (slash == std::string_view::npos || read_number(text.substr(slash + 1), layout.outer))) {
    return layout;
  }
  return fail("'{}' is not a layout", text);
}

// Reads layouts as print_layouts writes them.
Status parse_layouts(std::string_view text, Value& value) {
  const std::vector<std::string> parts = split_text(text, '+');
  PIPER_ASSIGN(value.layout, parse_layout(parts[0]));
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t at = parts[i].find('@');
    AxisLayout lies;
    if (at == std::string::npos ||
        !read_number(std::string_view(parts[i]).substr(at + 1), lies.axis))
      return fail("'{}' names no axis", parts[i]);
    PIPER_ASSIGN(lies.layout, parse_layout(std::string_view(parts[i]).substr(0, at)));
    value.over.push_back(lies);
  }
  return ok_status();
}

template <class T>
bool append(std::string_view word, std::string& bytes, int base = 10) {
  T element{};
  std::from_chars_result read{};
  const char* end = word.data() + word.size();
  if constexpr (std::is_floating_point_v<T>) {
    read = std::from_chars(word.data(), end, element);
  } else {
    read = std::from_chars(word.data(), end, element, base);
  }
  bytes.append(reinterpret_cast<const char*>(&element), sizeof(T));
  return read.ec == std::errc() && read.ptr == end;
}

bool append_element(DType dtype, std::string_view word, std::string& bytes) {
  switch (dtype) {
    case DType::kF32:
      return append<float>(word, bytes);
    case DType::kF64:
      return append<double>(word, bytes);
    case DType::kI64:
      return append<int64_t>(word, bytes);
    case DType::kI32:
      return append<int32_t>(word, bytes);
    case DType::kBool:
      return append<uint8_t>(word, bytes);
    case DType::kBF16:
    case DType::kF16:
      return word.starts_with("0x") && append<uint16_t>(word.substr(2), bytes, 16);
  }
  return false;
}

Result<Bytes> parse_elements(std::string_view text, const TensorType& type) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
    return fail("expected elements like [1,2], found '{}'", text);
  }
  std::string_view inner = text.substr(1, text.size() - 2);
  std::string bytes;
  int64_t count = 0;
  std::vector<std::string> words;
  if (!inner.empty()) words = split_text(inner, ',');
  for (const std::string& word : words) {
    if (!append_element(type.dtype, word, bytes)) {
      return fail("'{}' is not an element of {}", word, to_string(type));
    }
    ++count;
  }
  if (count != num_elements(type.shape)) {
    return fail("{} elements for {}", count, to_string(type));
  }
  return Bytes::copy_of(bytes.data(), bytes.size());
}

class Parser {
 public:
  void parse(LineReader& line);
  Graph graph;

 private:
  static Value declared(LineReader& line);
  ValueId value(LineReader& line, std::string_view text) const;
  ValueId next_value(LineReader& line) const { return value(line, line.raw()); }
  ValueId add(LineReader& line, Value value);
  void parse_graph_line(LineReader& line);
  void parse_source(LineReader& line, ValueKind kind);
  void parse_tags(LineReader& line, std::string_view text, Node& node);
  void parse_node(LineReader& line);
  void parse_node_fields(LineReader& line, Node& node);
  void parse_param(LineReader& line);
  void parse_result(LineReader& line, std::string_view word);
};

// What went wrong elsewhere is what is wrong with the line.
void expect_ok(LineReader& line, const Status& status) {
  if (!status) line.wrong(status.error().message);
}

// Reads %name:type — a bare name may hold ':' itself, so the last one counts.
Value Parser::declared(LineReader& line) {
  Value value;
  line.expect("%");
  const bool quoted = line.next_is('"');
  std::string name = line.word();
  if (quoted) line.expect(":");
  const size_t colon = quoted ? name.npos : name.rfind(':');
  if (!quoted && colon == name.npos) line.wrong(fmt::format("value '{}' has no type", name));
  value.name = name.substr(0, colon);
  const std::string dtype = colon == name.npos ? line.word() : name.substr(colon + 1);
  const std::string_view shape = line.bracketed('[', ']');
  if (line.is_wrong()) return value;
  line.read(dtype + std::string(shape), value.type);
  const Shape& dims = value.type.shape;
  if (std::any_of(dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; }))
    line.wrong(fmt::format("'{}' is not a shape", shape));
  return value;
}

ValueId Parser::value(LineReader& line, std::string_view text) const {
  ValueId id;
  if (line.is_wrong()) return id;
  if (!text.starts_with('%')) line.wrong(fmt::format("expected '%' at '{}'", text));
  const std::string name = line.name(text.substr(std::min<size_t>(1, text.size())));
  id = graph.find_value(name);
  if (!id.valid()) line.wrong(fmt::format("no value has the name '{}'", name));
  return id;
}

ValueId Parser::add(LineReader& line, Value value) {
  const std::string name = value.name;
  const ValueId id = graph.add_value(std::move(value));
  if (graph.value(id).name != name) line.wrong(fmt::format("two values have the name '{}'", name));
  return id;
}

void Parser::parse_graph_line(LineReader& line) {
  line.read_fields();
  line.get("batch", graph.batch);
  line.get("shards", graph.shards);
  while (const auto tag = line.value("tag")) graph.add_tag(line.name(*tag));
}

void Parser::parse_source(LineReader& line, ValueKind kind) {
  Value value = declared(line);
  value.kind = kind;
  if (kind != ValueKind::kInput) line.expect("=");
  if (kind == ValueKind::kInput || line.is_wrong()) {
  } else if (line.take("fill")) {
    line.read(line.raw(), value.fill);
  } else if (line.take("digest:")) {
    value.data_digest = line.word();
  } else {
    const std::string_view elements = line.bracketed('[', ']');
    auto data = line.is_wrong() ? Bytes() : parse_elements(elements, value.type);
    if (!data) return line.wrong(data.error().message);
    value.data = *std::move(data);
  }
  line.read_fields();
  line.get("batch_dim", value.batch_dim);
  if (const auto text = line.value("layout")) expect_ok(line, parse_layouts(*text, value));
  if (line.is_wrong()) return;
  const ValueId id = add(line, std::move(value));
  if (kind == ValueKind::kInput) graph.inputs.push_back(id);
}

void Parser::parse_tags(LineReader& line, std::string_view text, Node& node) {
  for (const std::string_view item : line.items(text)) {
    const size_t equals = std::min(item.rfind('='), item.size());
    const std::string name = line.name(item.substr(0, equals));
    const int index = graph.tag_index(name);
    if (index < 0) return line.wrong(fmt::format("no tag has the name '{}'", name));
    int32_t value = 0;
    line.read(item.substr(std::min(equals + 1, item.size())), value);
    graph.set_tag(node, index, value);
  }
}

void Parser::parse_node_fields(LineReader& line, Node& node) {
  line.read_fields();
  if (const auto name = line.value("pass")) {
    const auto pass = std::find(std::begin(kPassNames), std::end(kPassNames), *name);
    if (pass == std::end(kPassNames)) return line.wrong(fmt::format("'{}' is not a pass", *name));
    node.pass = static_cast<Pass>(pass - std::begin(kPassNames));
  }
  if (const auto name = line.value("name")) node.name = line.name(*name);
  if (const auto scope = line.value("scope")) node.scope = line.name(*scope);
  if (const auto tags = line.value("tags")) parse_tags(line, *tags, node);
}

void Parser::parse_node(LineReader& line) {
  Node node;
  std::vector<Value> outputs;
  while (line.until("=")) outputs.push_back(declared(line));
  node.op = line.word();
  line.expect("(");
  while (line.until(")")) {
    node.inputs.push_back(ValueId());
    if (!line.take("_")) {
      line.expect("%");
      node.inputs.back() = value(line, "%" + print_word(line.word()));
    }
    if (!line.next_is(')')) line.expect(",");
  }
  if (line.next_is('{')) {
    auto attrs = parse_attrs(line.bracketed('{', '}'));
    if (!attrs) return line.wrong(attrs.error().message);
    node.attrs = *std::move(attrs);
  }
  if (!outputs.empty()) node.name = outputs[0].name;
  parse_node_fields(line, node);
  std::vector<std::string> layouts;
  if (const auto text = line.value("layout")) layouts = split_text(*text, ',');
  if (!layouts.empty() && layouts.size() != outputs.size())
    return line.wrong(fmt::format("{} layouts for {} outputs", layouts.size(), outputs.size()));
  for (size_t i = 0; i < outputs.size() && !line.is_wrong(); ++i) {
    outputs[i].producer = NodeId(graph.nodes.size());
    outputs[i].output_index = static_cast<int>(i);
    if (!layouts.empty()) expect_ok(line, parse_layouts(layouts[i], outputs[i]));
    node.outputs.push_back(add(line, std::move(outputs[i])));
  }
  graph.nodes.push_back(std::move(node));
}

void Parser::parse_param(LineReader& line) {
  Param param;
  param.name = line.word();
  param.value = next_value(line);
  line.read_fields();
  while (const auto alias = line.value("alias")) param.aliases.push_back(line.name(*alias));
  if (const auto scope = line.value("scope")) param.scope = line.name(*scope);
  if (const auto evidence = line.value("evidence")) param.evidence = line.name(*evidence);
  param.frozen = line.value("frozen") == "1";
  if (const auto gradient = line.value("gradient")) param.gradient = value(line, *gradient);
  graph.params.push_back(std::move(param));
}

void Parser::parse_result(LineReader& line, std::string_view word) {
  const std::pair<std::string_view, ValueId*> results[] = {{"loss", &graph.loss},
                                                           {"grad_norm", &graph.grad_norm},
                                                           {"weight", &graph.weight},
                                                           {"step", &graph.step},
                                                           {"sample", &graph.sample}};
  const auto result = std::find_if(std::begin(results), std::end(results),
                                   [&](const auto& row) { return row.first == word; });
  if (result != std::end(results)) {
    *result->second = next_value(line);
  } else if (word == "output") {
    graph.outputs.push_back(next_value(line));
  } else if (word == "update") {
    const ValueId state = next_value(line);
    StateUpdate& update = graph.updates.emplace_back(StateUpdate{state, next_value(line)});
    if (line.next_is('%')) update.beside = next_value(line);
  } else {
    line.wrong(fmt::format("'{}' does not start a line", word));
  }
}

void Parser::parse(LineReader& line) {
  if (line.next_is('%') || line.next_is('=')) return parse_node(line);
  const std::string_view word = line.raw();
  if (word == "graph") return parse_graph_line(line);
  if (word == "input") return parse_source(line, ValueKind::kInput);
  if (word == "constant") return parse_source(line, ValueKind::kConstant);
  if (word == "state") return parse_source(line, ValueKind::kState);
  if (word == "param") return parse_param(line);
  parse_result(line, word);
}

}  // namespace

Result<Graph> parse_graph(std::string_view text) {
  Parser parser;
  PIPER_TRY(read_lines(text, "graph", [&](LineReader& line) { parser.parse(line); }));
  PIPER_TRY(check_graph(parser.graph));
  return std::move(parser.graph);
}

}  // namespace piper
