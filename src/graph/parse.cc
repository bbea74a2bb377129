#include <charconv>

#include "text.h"

namespace piper {
namespace {

// Reads one line from left to right. A method that fails leaves the first error in `problem`.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) {}

  bool done() {
    skip_spaces();
    return rest_.empty();
  }
  bool take(std::string_view token) {
    skip_spaces();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  bool next_is(char c) {
    skip_spaces();
    return !rest_.empty() && rest_.front() == c;
  }
  Status expect(std::string_view token) {
    if (take(token)) return ok_status();
    return fail("expected '{}' at '{}'", token, rest_);
  }
  Result<std::string> word() {
    skip_spaces();
    if (!rest_.empty() && rest_.front() == '"') return quoted();
    size_t length = 0;
    while (length < rest_.size() && is_bare(rest_[length])) ++length;
    if (length == 0) return fail("expected a name at '{}'", rest_);
    std::string result(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return result;
  }
  Result<int64_t> integer() {
    PIPER_ASSIGN(std::string text, word());
    int64_t value = 0;
    auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) {
      return fail("'{}' is not an integer", text);
    }
    return value;
  }
  Result<double> real() {
    PIPER_ASSIGN(std::string text, word());
    double value = 0;
    auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) {
      return fail("'{}' is not a number", text);
    }
    return value;
  }
  // From the opening bracket to the closing one, quoted text skipped.
  Result<std::string_view> bracketed(char open, char close) {
    skip_spaces();
    int depth = 0;
    bool in_quotes = false;
    for (size_t i = 0; i < rest_.size(); ++i) {
      char c = rest_[i];
      if (in_quotes && c == '\\') {
        ++i;
      } else if (c == '"') {
        in_quotes = !in_quotes;
      } else if (!in_quotes && (c == open || c == close)) {
        depth += c == open ? 1 : -1;
        if (depth == 0) {
          std::string_view result = rest_.substr(0, i + 1);
          rest_.remove_prefix(i + 1);
          return result;
        }
      }
      if (depth == 0) break;
    }
    return fail("expected '{}…{}' at '{}'", open, close, rest_);
  }

 private:
  void skip_spaces() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  Result<std::string> quoted() {
    std::string result;
    for (size_t i = 1; i < rest_.size(); ++i) {
      char c = rest_[i];
      if (c == '"') {
        rest_.remove_prefix(i + 1);
        return result;
      }
      if (c != '\\') {
        result += c;
      } else if (i + 1 < rest_.size() && rest_[i + 1] != 'x') {
        result += rest_[++i];
      } else {
        unsigned byte = 0;
        std::string_view digits = rest_.substr(std::min(i + 2, rest_.size()), 2);
        auto read = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
        if (digits.size() != 2 || read.ptr != digits.data() + 2) return fail("a wrong escape");
        result += static_cast<char>(byte);
        i += 3;
      }
    }
    return fail("a quoted name without end");
  }

  std::string_view rest_;
};

Result<Shape> parse_shape(std::string_view text) {
  Shape shape;
  std::string_view inner = text.substr(1, text.size() - 2);
  if (inner.empty()) return shape;
  for (const std::string& word : split_text(inner, ',')) {
    int64_t extent = 0;
    auto read = std::from_chars(word.data(), word.data() + word.size(), extent);
    if (read.ec != std::errc() || read.ptr != word.data() + word.size() || extent < 0) {
      return fail("'{}' is not a shape", text);
    }
    shape.push_back(extent);
  }
  return shape;
}

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

// As print_layouts writes them.
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

class Parser {
 public:
  Status parse_line(std::string_view text);
  Graph graph;

 private:
  Result<TensorType> parse_type(Line& line, std::string dtype);
  Result<Value> parse_declared(Line& line);
  Result<ValueId> parse_value(Line& line);
  Status add(Value value, ValueId* id);
  Status parse_graph_line(Line& line);
  Status parse_source(Line& line, ValueKind kind);
  Status parse_data(Line& line, Value& value);
  Status parse_node(Line& line);
  Status parse_node_options(Line& line, Node& node, std::vector<std::string>& layouts);
  Status parse_tags(Line& line, Node& node);
  Status parse_param(Line& line);
  Status parse_param_option(Line& line, Param& param);
  Status parse_result(Line& line, const std::string& word);
};

Result<TensorType> Parser::parse_type(Line& line, std::string dtype) {
  TensorType type;
  std::optional<DType> known = parse_dtype(dtype);
  if (!known) return fail("'{}' is not an element type", dtype);
  type.dtype = *known;
  PIPER_ASSIGN(std::string_view shape, line.bracketed('[', ']'));
  PIPER_ASSIGN(type.shape, parse_shape(shape));
  return type;
}

// %name:type — a bare name may hold ':' itself, so the last one counts.
Result<Value> Parser::parse_declared(Line& line) {
  Value value;
  PIPER_TRY(line.expect("%"));
  bool is_quoted = line.next_is('"');
  PIPER_ASSIGN(std::string word, line.word());
  std::string dtype;
  if (is_quoted) {
    value.name = word;
    PIPER_TRY(line.expect(":"));
    PIPER_ASSIGN(dtype, line.word());
  } else {
    size_t colon = word.rfind(':');
    if (colon == std::string::npos) return fail("value '{}' has no type", word);
    value.name = word.substr(0, colon);
    dtype = word.substr(colon + 1);
  }
  PIPER_ASSIGN(value.type, parse_type(line, dtype));
  return value;
}

Result<ValueId> Parser::parse_value(Line& line) {
  PIPER_TRY(line.expect("%"));
  PIPER_ASSIGN(std::string name, line.word());
  ValueId id = graph.find_value(name);
  if (!id.valid()) return fail("no value has the name '{}'", quote_control(name));
  return id;
}

Status Parser::add(Value value, ValueId* id) {
  std::string name = value.name;
  *id = graph.add_value(std::move(value));
  if (graph.value(*id).name != name) return fail("two values have the name '{}'", name);
  return ok_status();
}

Status Parser::parse_graph_line(Line& line) {
  while (!line.done()) {
    if (line.take("batch=")) {
      PIPER_ASSIGN(graph.batch, line.integer());
    } else if (line.take("shards=")) {
      PIPER_ASSIGN(graph.shards, line.integer());
    } else {
      PIPER_TRY(line.expect("tag="));
      PIPER_ASSIGN(std::string name, line.word());
      graph.add_tag(name);
    }
  }
  return ok_status();
}

Status Parser::parse_data(Line& line, Value& value) {
  PIPER_TRY(line.expect("="));
  if (line.take("fill")) {
    PIPER_ASSIGN(value.fill, line.real());
  } else if (line.take("digest:")) {
    PIPER_ASSIGN(value.data_digest, line.word());
  } else {
    PIPER_ASSIGN(std::string_view elements, line.bracketed('[', ']'));
    PIPER_ASSIGN(value.data, parse_elements(elements, value.type));
  }
  return ok_status();
}

Status Parser::parse_source(Line& line, ValueKind kind) {
  PIPER_ASSIGN(Value value, parse_declared(line));
  value.kind = kind;
  if (kind != ValueKind::kInput) {
    PIPER_TRY(parse_data(line, value));
  } else if (line.take("batch_dim=")) {
    PIPER_ASSIGN(int64_t dim, line.integer());
    value.batch_dim = static_cast<int>(dim);
  }
  if (line.take("layout=")) {
    PIPER_ASSIGN(std::string text, line.word());
    PIPER_TRY(parse_layouts(text, value));
  }
  ValueId id;
  PIPER_TRY(add(std::move(value), &id));
  if (kind == ValueKind::kInput) graph.inputs.push_back(id);
  return ok_status();
}

Status Parser::parse_tags(Line& line, Node& node) {
  PIPER_TRY(line.expect("{"));
  while (!line.take("}")) {
    PIPER_ASSIGN(std::string name, line.word());
    PIPER_TRY(line.expect("="));
    PIPER_ASSIGN(int64_t value, line.integer());
    int index = graph.tag_index(name);
    if (index < 0) return fail("no tag has the name '{}'", quote_control(name));
    graph.set_tag(node, index, static_cast<int32_t>(value));
    line.take(",");
  }
  return ok_status();
}

Status Parser::parse_node_options(Line& line, Node& node, std::vector<std::string>& layouts) {
  while (!line.done()) {
    if (line.take("pass=")) {
      PIPER_ASSIGN(std::string name, line.word());
      size_t pass = 0;
      while (pass < 4 && name != kPassNames[pass]) ++pass;
      if (pass == 4) return fail("'{}' is not a pass", name);
      node.pass = static_cast<Pass>(pass);
    } else if (line.take("name=")) {
      PIPER_ASSIGN(node.name, line.word());
    } else if (line.take("scope=")) {
      PIPER_ASSIGN(node.scope, line.word());
    } else if (line.take("tags=")) {
      PIPER_TRY(parse_tags(line, node));
    } else {
      PIPER_TRY(line.expect("layout="));
      do {
        PIPER_ASSIGN(std::string text, line.word());
        layouts.push_back(std::move(text));
      } while (line.take(","));
    }
  }
  return ok_status();
}

Status Parser::parse_node(Line& line) {
  Node node;
  std::vector<Value> outputs;
  while (!line.take("=")) {
    PIPER_ASSIGN(Value value, parse_declared(line));
    outputs.push_back(std::move(value));
  }
  PIPER_ASSIGN(node.op, line.word());
  PIPER_TRY(line.expect("("));
  while (!line.take(")")) {
    ValueId id;
    if (!line.take("_")) {
      PIPER_ASSIGN(id, parse_value(line));
    }
    node.inputs.push_back(id);
    if (!line.next_is(')')) PIPER_TRY(line.expect(","));
  }
  if (line.next_is('{')) {
    PIPER_ASSIGN(std::string_view attrs, line.bracketed('{', '}'));
    PIPER_ASSIGN(node.attrs, parse_attrs(attrs));
  }
  if (!outputs.empty()) node.name = outputs[0].name;
  std::vector<std::string> layouts;
  PIPER_TRY(parse_node_options(line, node, layouts));
  if (!layouts.empty() && layouts.size() != outputs.size()) {
    return fail("{} layouts for {} outputs", layouts.size(), outputs.size());
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].producer = NodeId(graph.nodes.size());
    outputs[i].output_index = static_cast<int>(i);
    if (!layouts.empty()) PIPER_TRY(parse_layouts(layouts[i], outputs[i]));
    ValueId id;
    PIPER_TRY(add(std::move(outputs[i]), &id));
    node.outputs.push_back(id);
  }
  graph.nodes.push_back(std::move(node));
  return ok_status();
}

Status Parser::parse_param_option(Line& line, Param& param) {
  if (line.take("alias=")) {
    PIPER_ASSIGN(std::string alias, line.word());
    param.aliases.push_back(alias);
  } else if (line.take("scope=")) {
    PIPER_ASSIGN(param.scope, line.word());
  } else if (line.take("evidence=")) {
    PIPER_ASSIGN(param.evidence, line.word());
  } else if (line.take("frozen=1")) {
    param.frozen = true;
  } else {
    PIPER_TRY(line.expect("gradient="));
    PIPER_ASSIGN(param.gradient, parse_value(line));
  }
  return ok_status();
}

Status Parser::parse_param(Line& line) {
  Param param;
  PIPER_ASSIGN(param.name, line.word());
  PIPER_ASSIGN(param.value, parse_value(line));
  while (!line.done()) PIPER_TRY(parse_param_option(line, param));
  graph.params.push_back(std::move(param));
  return ok_status();
}

Status Parser::parse_result(Line& line, const std::string& word) {
  PIPER_ASSIGN(ValueId id, parse_value(line));
  if (word == "update") {
    PIPER_ASSIGN(ValueId next, parse_value(line));
    graph.updates.push_back({id, next});
  } else if (word == "output") {
    graph.outputs.push_back(id);
  } else if (word == "loss") {
    graph.loss = id;
  } else if (word == "grad_norm") {
    graph.grad_norm = id;
  } else if (word == "step") {
    graph.step = id;
  } else if (word == "sample") {
    graph.sample = id;
  } else {
    return fail("'{}' does not start a line", quote_control(word));
  }
  return ok_status();
}

Status Parser::parse_line(std::string_view text) {
  Line line(text);
  if (line.done()) return ok_status();
  if (line.next_is('%') || line.next_is('=')) return parse_node(line);
  PIPER_ASSIGN(std::string word, line.word());
  if (word == "graph") {
    PIPER_TRY(parse_graph_line(line));
  } else if (word == "input") {
    PIPER_TRY(parse_source(line, ValueKind::kInput));
  } else if (word == "constant") {
    PIPER_TRY(parse_source(line, ValueKind::kConstant));
  } else if (word == "state") {
    PIPER_TRY(parse_source(line, ValueKind::kState));
  } else if (word == "param") {
    PIPER_TRY(parse_param(line));
  } else {
    PIPER_TRY(parse_result(line, word));
  }
  if (!line.done()) return fail("something follows the end of the line");
  return ok_status();
}

}  // namespace

Result<Graph> parse_graph(std::string_view text) {
  Parser parser;
  int number = 0;
  while (!text.empty()) {
    ++number;
    size_t end = std::min(text.find('\n'), text.size());
    if (Status status = parser.parse_line(text.substr(0, end)); !status) {
      status.error().at = SourceSpan{"graph", number, 0, 1};
      return std::move(status).error();
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  PIPER_TRY(check_graph(parser.graph));
  return std::move(parser.graph);
}

}  // namespace piper
