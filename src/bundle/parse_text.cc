#include <algorithm>
#include <charconv>
#include <tuple>

#include "files.h"
#include "text.h"

namespace piper {
namespace {

// One line: words and quoted texts in order, then key=value fields. The first fault is kept and
// reading goes on harmlessly.
class Line {
 public:
  Line(std::string_view text, int number) : number_(number) {
    while (text.starts_with(' ')) text.remove_prefix(1), ++indent_;
    rest_ = text;
  }
  int indent() const { return indent_; }
  bool empty() const { return rest_.empty(); }

  // The next word or quoted text, quotes and all.
  std::string_view raw() {
    size_t end = 0, depth = 0;
    bool quoted = false;
    for (; end < rest_.size(); ++end) {
      const char c = rest_[end];
      if (quoted && c == '\\') ++end;
      if (c == '"') quoted = !quoted;
      if (!quoted && (c == '[' || c == '{')) ++depth;
      if (!quoted && (c == ']' || c == '}') && depth > 0) --depth;
      if (!quoted && depth == 0 && c == ' ') break;
    }
    end = std::min(end, rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
    return word;
  }
  std::string text() { return unquote(raw()); }
  int64_t integer() { return to_integer(raw()); }
  TensorType type() { return to_type(raw()); }
  void expect_position(size_t position) {
    if (const int64_t stated = integer(); stated != static_cast<int64_t>(position))
      wrong(fmt::format("position {} should be {}", stated, position));
  }

  // The rest of the line as fields; the getters below then take them.
  void read_fields() {
    while (!rest_.empty() && !rest_.starts_with('{')) fields_.push_back(raw());
  }
  std::string_view rest() {
    const std::string_view all = rest_;
    rest_ = {};
    return all;
  }
  bool flag(std::string_view key) { return take(key).has_value(); }
  template <class Integer>
  void get(std::string_view key, Integer& to) {
    if (const auto value = take_value(key)) to = narrow<Integer>(to_integer(*value));
  }
  void get(std::string_view key, double& to) {
    const auto value = take_value(key);
    if (!value) return;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), to);
    if (error != std::errc() || end != value->data() + value->size())
      wrong(fmt::format("'{}' is no number", *value));
  }
  void get(std::string_view key, std::string& to) {
    if (const auto value = take_value(key)) to = unquote(*value);
  }
  template <class Integer>
  bool get(std::string_view key, std::vector<Integer>& to) {
    const auto value = take_value(key);
    for (const std::string_view item : items(value))
      to.push_back(narrow<Integer>(to_integer(item)));
    return value.has_value();
  }
  void get(std::string_view key, std::vector<std::string>& to) {
    for (const std::string_view item : items(take_value(key))) to.push_back(unquote(item));
  }
  // "S1/3:8@0": dim, stretches where there are several, elements of unequal blocks, axis.
  void get(std::string_view key, std::vector<TensorCut>& to) {
    for (const std::string_view item : items(take_value(key))) {
      const size_t at = item.find('@'), colon = std::min(at, item.find(':')),
                   slash = std::min(colon, item.find('/'));
      if (!item.starts_with('S') || at == item.npos)
        return wrong(fmt::format("'{}' is no cut", item));
      TensorCut& cut = to.emplace_back();
      cut.dim = narrow<int32_t>(to_integer(item.substr(1, slash - 1)));
      if (slash < colon) cut.outer = to_integer(item.substr(slash + 1, colon - slash - 1));
      if (colon < at) cut.block = to_integer(item.substr(colon + 1, at - colon - 1));
      cut.axis = narrow<int32_t>(to_integer(item.substr(at + 1)));
    }
  }
  std::optional<std::string_view> take_value(std::string_view key) {
    for (size_t i = 0; i < fields_.size(); ++i)
      if (fields_[i].starts_with(key) && fields_[i].substr(key.size()).starts_with('=')) {
        const std::string_view value = fields_[i].substr(key.size() + 1);
        fields_.erase(fields_.begin() + static_cast<ptrdiff_t>(i));
        return value;
      }
    return std::nullopt;
  }

  void wrong(std::string text) {
    if (wrong_.empty()) wrong_ = std::move(text);
  }
  // After all is taken: the fault, if there is one.
  Status done() {
    if (!fields_.empty()) wrong(fmt::format("'{}' is not expected here", fields_[0]));
    if (!rest_.empty()) wrong(fmt::format("'{}' is not expected here", rest_));
    if (wrong_.empty()) return ok_status();
    return fail(SourceSpan{"plan", number_}, "{}", quote_control(wrong_))
        .with_code(ExitCode::kPlan);
  }

 private:
  std::optional<std::string_view> take(std::string_view key) {
    const auto found = std::find(fields_.begin(), fields_.end(), key);
    if (found == fields_.end()) return std::nullopt;
    const std::string_view value = *found;
    fields_.erase(found);
    return value;
  }
  template <class Integer>
  Integer narrow(int64_t value) {
    const auto to = static_cast<Integer>(value);
    if (to != value) wrong(fmt::format("{} is too large", value));
    return to;
  }
  int64_t to_integer(std::string_view text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size())
      wrong(fmt::format("'{}' is no integer", text));
    return value;
  }
  TensorType to_type(std::string_view text) {
    const size_t open = std::min(text.find('['), text.size());
    const auto dtype = parse_dtype(text.substr(0, open));
    if (!dtype) wrong(fmt::format("'{}' is no type", text));
    TensorType type{dtype.value_or(DType::kF32), {}};
    if (open == text.size()) return type;
    for (const std::string_view item : items(text.substr(open)))
      type.shape.push_back(to_integer(item));
    return type;
  }
  // The parts of "[a,b]"; commas inside quotes do not part.
  std::vector<std::string_view> items(std::optional<std::string_view> text) {
    std::vector<std::string_view> parts;
    if (!text) return parts;
    if (text->size() < 2 || text->front() != '[' || text->back() != ']') {
      wrong(fmt::format("'{}' is no list", *text));
      return parts;
    }
    const std::string_view inner = text->substr(1, text->size() - 2);
    size_t begin = 0;
    bool quoted = false;
    for (size_t i = 0; i <= inner.size() && !inner.empty(); ++i) {
      if (i < inner.size() && quoted && inner[i] == '\\') {
        ++i;
        continue;
      }
      if (i < inner.size() && inner[i] == '"') quoted = !quoted;
      if (i < inner.size() && (quoted || inner[i] != ',')) continue;
      parts.push_back(inner.substr(begin, i - begin));
      begin = i + 1;
    }
    return parts;
  }
  std::string unquote(std::string_view text) {
    std::string out;
    if (text.size() < 2 || text.front() != '"' || text.back() != '"') {
      wrong(fmt::format("'{}' is no quoted text", text));
      return out;
    }
    text = text.substr(1, text.size() - 2);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out += text[i];
      } else if (text[i + 1] != 'x') {
        out += text[++i];
      } else {
        int value = 0;
        const std::string_view digits = text.substr(i + 2, 2);
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
        out += static_cast<char>(value);
        i += 3;
      }
    }
    return out;
  }

  std::string_view rest_;
  int number_, indent_ = 0;
  std::vector<std::string_view> fields_;
  std::string wrong_;
};

std::optional<InstructionKind> parse_kind(std::string_view name) {
  for (int k = 0; k < kNumInstructionKinds; ++k)
    if (name == to_string(static_cast<InstructionKind>(k))) return static_cast<InstructionKind>(k);
  return std::nullopt;
}

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    int value = 0;
    std::from_chars(digits.data() + i, digits.data() + i + 2, value, 16);
    bytes += static_cast<char>(value);
  }
  return bytes;
}

class Parser {
 public:
  Result<RoleProgram> run(std::string_view text) {
    int number = 0;
    for (const std::string& line : split_text(text, '\n')) {
      Line parsed(line, ++number);
      if (parsed.empty() || line.substr(static_cast<size_t>(parsed.indent())).starts_with('#'))
        continue;
      parse(parsed);
      PIPER_TRY(parsed.done());
    }
    return std::move(role_);
  }

 private:
  void parse(Line& line) {
    if (line.indent() == 0) return parse_table(line);
    if (line.indent() >= 4) return parse_sum(line);
    if (instructions_) return parse_instruction(line);
    if (role_.programs.empty()) return line.wrong("this line belongs to nothing");
    parse_program_part(line);
  }

  void parse_table(Line& line) {
    const std::string_view word = line.raw();
    instructions_ = word == "prologue"   ? &role_.prologue
                    : word == "body"     ? &role_.body
                    : word == "epilogue" ? &role_.epilogue
                                         : nullptr;
    if (instructions_) return;
    if (word == "plan") return parse_plan_line(line);
    if (word == "buffer") return parse_buffer(line);
    if (word == "input") return parse_input(line);
    if (word == "program") return parse_program(line);
    parse_name(word, line);
  }

  void parse_plan_line(Line& line) {
    line.read_fields();
    line.get("batch", role_.batch);
    line.get("steps_ahead", role_.steps_ahead);
    line.get("arena", role_.arena_bytes);
    line.get("workspace", role_.workspace_bytes);
    line.get("transport", role_.transport_bytes);
    line.get("scratch", role_.scratch_bytes);
    line.get("host", role_.host_bytes);
  }

  void parse_name(std::string_view word, Line& line) {
    if (word == "axis") {
      std::string name = line.text();
      role_.mesh.emplace_back(std::move(name), line.integer());
    } else if (word == "stream") {
      line.expect_position(role_.streams.size());
      role_.streams.push_back({line.text()});
      line.read_fields();
      line.get("priority", role_.streams.back().priority);
      line.get("sms", role_.streams.back().sms);
    } else if (word == "group") {
      line.expect_position(role_.groups.size());
      role_.groups.push_back({line.text(), {}});
      line.read_fields();
      line.get("axes", role_.groups.back().axes);
    } else if (word == "sum") {
      line.expect_position(role_.sum_targets.size());
      role_.sum_targets.push_back({line.text()});
      line.read_fields();
      line.get("uses", role_.sum_targets.back().uses);
    } else if (word == "report") {
      role_.reports.push_back({line.text()});
      line.read_fields();
      line.get("buffer", role_.reports.back().buffer);
    } else {
      line.wrong(fmt::format("a line cannot start with '{}'", word));
    }
  }

  void parse_buffer(Line& line) {
    line.expect_position(role_.buffers.size());
    Buffer buffer;
    Tensor tensor;
    std::tie(tensor.name, buffer.micro) = parse_buffer_name(line.text());
    tensor.type = line.type();
    const std::string_view kind = line.raw();
    const auto found = std::find(std::begin(kBufferKinds), std::end(kBufferKinds), kind);
    if (found == std::end(kBufferKinds))
      return line.wrong(fmt::format("'{}' is no kind of buffer", kind));
    tensor.kind = static_cast<BufferKind>(found - std::begin(kBufferKinds));
    line.read_fields();
    line.get("at", buffer.offset);
    tensor.host = line.flag("host");
    line.get("init", tensor.init);
    line.get("fill", tensor.fill);
    line.get("param", tensor.param);
    line.get("aliases", tensor.aliases);
    line.get("cuts", tensor.cuts);
    line.get("part_of", tensor.part_of);
    line.get("whole", tensor.whole);
    line.get("previous_of", tensor.previous_of);
    line.get("packed_of", tensor.packed_of);
    buffer.tensor = tensor_like(std::move(tensor));
    role_.buffers.push_back(buffer);
  }
  // "h@3" is "h" of microbatch 3.
  static std::pair<std::string, int32_t> parse_buffer_name(std::string name) {
    const size_t sign = name.rfind('@');
    int32_t micro = 0;
    if (sign == name.npos) return {std::move(name), -1};
    std::from_chars(name.data() + sign + 1, name.data() + name.size(), micro);
    if (micro < 0 || name.substr(sign) != fmt::format("@{}", micro)) return {std::move(name), -1};
    return {name.substr(0, sign), micro};
  }
  // Step buffers that say the same are of one tensor.
  int32_t tensor_like(Tensor tensor) {
    const auto next = static_cast<int32_t>(role_.tensors.size());
    const auto [known, is_new] = tensors_.try_emplace(tensor.name, next);
    if (!is_new && tensor.kind == BufferKind::kStep &&
        role_.tensors[static_cast<size_t>(known->second)] == tensor)
      return known->second;
    known->second = next;
    role_.tensors.push_back(std::move(tensor));
    return next;
  }

  void parse_input(Line& line) {
    DataInput& input = role_.inputs.emplace_back();
    input.name = line.text();
    input.type = line.type();
    line.read_fields();
    line.get("batch_dim", input.batch_dim);
    line.get("low", input.low);
    line.get("high", input.high);
    line.get("ignore", input.ignore);
  }

  void parse_program(Line& line) {
    line.expect_position(role_.programs.size());
    Program& program = role_.programs.emplace_back();
    line.read_fields();
    line.get("label", program.label);
    line.get("args", program.num_args);
    line.get("workspace", program.workspace_bytes);
  }

  void parse_program_part(Line& line) {
    Program& program = role_.programs.back();
    const std::string_view word = line.raw();
    if (word == "op") {
      ProgramOp& op = program.ops.emplace_back();
      op.op = line.raw();
      line.read_fields();
      line.get("in", op.inputs);
      line.get("out", op.outputs);
      if (line.empty()) return;
      auto attrs = parse_attrs(line.rest());
      if (!attrs) return line.wrong(attrs.error().message);
      op.attrs = *std::move(attrs);
      return;
    }
    if (word == "work") return parse_work(line, program.work);
    if (word != "value") return line.wrong(fmt::format("a program has no '{}'", word));
    const size_t id = program.values.size();
    line.expect_position(id);
    program.values.push_back(line.type());
    line.read_fields();
    const bool read = line.flag("read"), written = line.flag("written");
    program.offsets.push_back(-1);
    line.get("at", program.offsets.back());
    ProgramView view{static_cast<int32_t>(id), -1, 0};
    line.get("view", view.base);
    line.get("from", view.offset);
    if (view.base >= 0) program.views.push_back(view);
    if (id < static_cast<size_t>(std::max(program.num_args, 0))) {
      program.arg_read.push_back(read);
      program.arg_written.push_back(written);
    } else if (read || written) {
      line.wrong("only args are read or written from outside");
    }
    if (const auto literal = line.take_value("literal")) {
      if (!literal->starts_with("0x")) line.wrong("a literal starts with 0x");
      program.literals.emplace_back(
          static_cast<int32_t>(id),
          from_hex(literal->substr(std::min<size_t>(2, literal->size()))));
    }
  }

  void parse_work(Line& line, Work& work) {
    line.read_fields();
    line.get("ops", work.ops);
    line.get("recomputed", work.recomputed);
    for (int d = 0; d < kNumDTypes; ++d) {
      int64_t products = 0;
      line.get(info(static_cast<DType>(d)).name, products);
      if (products != 0) work.products.emplace_back(static_cast<DType>(d), products);
    }
  }

  // Where samples are expected, absent strides are zero on every axis.
  SampleRange parse_samples(Line& line, bool expected) {
    SampleRange range;
    line.get("first", range.first);
    line.get("count", range.count);
    if (!line.get("stride", range.stride) && expected) range.stride.assign(role_.mesh.size(), 0);
    return range;
  }

  void parse_instruction(Line& line) {
    line.expect_position(instructions_->size());
    Instruction& one = instructions_->emplace_back();
    const std::string_view name = line.raw();
    const auto kind = parse_kind(name);
    if (!kind) return line.wrong(fmt::format("there is no instruction '{}'", name));
    one.kind = *kind;
    line.read_fields();
    line.get("label", one.label);
    line.get("stream", one.stream);
    line.get("program", one.program);
    line.get("args", one.args);
    line.get("waits", one.waits);
    line.get("peer", one.peer);
    line.get("channel", one.channel);
    line.get("group", one.group);
    line.get("root", one.root);
    line.get("dim", one.dim);
    line.get("outer", one.outer);
    line.get("to_dim", one.to_dim);
    line.get("to_outer", one.to_outer);
    line.get("turn", one.turn);
    line.get("owned", one.owned);
    if (line.flag("max")) one.reduction = Reduction::kMax;
    line.get("input", one.input);
    one.samples = parse_samples(line, one.kind == InstructionKind::kInput);
    std::string pass = " ";
    line.get("pass", pass);
    if (pass.size() != 1) return line.wrong("a pass is one character");
    one.pass = pass[0];
    line.get("stage", one.stage);
    line.get("micro", one.micro);
    line.get("micros", one.micros);
    line.get("ahead", one.ahead);
  }

  void parse_sum(Line& line) {
    if (!instructions_ || instructions_->empty()) return line.wrong("this line belongs to nothing");
    Instruction& one = instructions_->back();
    const std::string_view word = line.raw();
    line.read_fields();
    if (word == "contribution") {
      Contribution& part = one.contributions.emplace_back();
      line.get("arg", part.arg);
      line.get("target", part.target);
      line.get("use", part.use);
      part.accumulates = line.flag("accumulates");
      SampleRange samples = parse_samples(line, true);
      if (one.contributions.size() > 1 && samples != one.samples)
        line.wrong("contributions of one instruction are of the same samples");
      one.samples = std::move(samples);
    } else if (word == "combine") {
      SumCombine& part = one.combines.emplace_back();
      line.get("arg", part.arg);
      line.get("from", part.from);
    } else if (word == "sum_read") {
      SumRead& part = one.sum_reads.emplace_back();
      line.get("arg", part.arg);
      line.get("target", part.target);
    } else {
      line.wrong(fmt::format("an instruction has no '{}'", word));
    }
  }

  RoleProgram role_;
  std::map<std::string, int32_t> tensors_;  // by name: the last one
  std::vector<Instruction>* instructions_ = nullptr;
};

}  // namespace

Result<RoleProgram> parse_plan(std::string_view text) { return Parser().run(text); }

}  // namespace piper
