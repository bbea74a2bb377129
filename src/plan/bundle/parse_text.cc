// Reads the text form of role programs.
#include <algorithm>
#include <charconv>
#include <tuple>

#include "text.h"

namespace piper {
namespace {

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
  void parse(LineReader& line) {
    if (line.indent() == 0) return parse_table(line);
    if (line.indent() >= 4) return parse_sum(line);
    if (instructions_) return parse_instruction(line);
    if (role.programs.empty()) return line.wrong("this line belongs to nothing");
    parse_program_part(line);
  }
  RoleProgram role;

 private:
  template <class X>
  static void fields(LineReader& line, X& to) {
    read_fields(line, to, PlanNames());
  }

  void parse_table(LineReader& line) {
    const std::string_view word = line.raw();
    bool known = false;
    instructions_ = nullptr;
    each_section(role, [&](std::string_view name, std::vector<Instruction>& list) {
      if (word == name) instructions_ = &list;
    });
    each_table(role, [&](std::string_view name, auto& table, bool numbered) {
      if (word != name) return;
      known = true;
      if (numbered) line.expect_position(table.size());
      fields(line, table.emplace_back());
    });
    if (known || instructions_) return;
    if (word == "outer") {
      OuterUpdate& update = role.outer_updates.emplace_back();
      instructions_ = &update.instructions;
      return fields(line, update);
    }
    if (word == "plan") return fields(line, role);
    if (word == "buffer") return parse_buffer(line);
    if (word != "program") return line.wrong(fmt::format("a line cannot start with '{}'", word));
    line.expect_position(role.programs.size());
    fields(line, role.programs.emplace_back());
  }

  void parse_buffer(LineReader& line) {
    line.expect_position(role.buffers.size());
    Buffer buffer;
    Tensor tensor;
    std::tie(tensor.name, buffer.micro) = parse_buffer_name(line.next<std::string>());
    fields(line, tensor);
    read_keys(line, buffer, PlanNames());
    buffer.tensor = tensor_like(std::move(tensor));
    role.buffers.push_back(buffer);
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
    const auto next = static_cast<int32_t>(role.tensors.size());
    const auto [known, is_new] = tensors_.try_emplace(tensor.name, next);
    if (!is_new && tensor.kind == BufferKind::kStep &&
        role.tensors[static_cast<size_t>(known->second)] == tensor)
      return known->second;
    known->second = next;
    role.tensors.push_back(std::move(tensor));
    return next;
  }

  void parse_program_part(LineReader& line) {
    Program& program = role.programs.back();
    const std::string_view word = line.raw();
    if (word == "op") return parse_op(line, program.ops.emplace_back());
    if (word == "work") return parse_work(line, program.work);
    if (word == "value") return parse_value(line, program);
    line.wrong(fmt::format("a program has no '{}'", word));
  }

  void parse_op(LineReader& line, ProgramOp& op) {
    fields(line, op);
    if (!line.next_is('{')) return;
    auto attrs = parse_attrs(line.bracketed('{', '}'));
    if (!attrs) return line.wrong(attrs.error().message);
    op.attrs = *std::move(attrs);
  }

  void parse_value(LineReader& line, Program& program) {
    const size_t id = program.values.size();
    line.expect_position(id);
    program.values.push_back(line.next<TensorType>());
    line.read_fields();
    const bool read = line.flag("read"), written = line.flag("written");
    if (id < static_cast<size_t>(std::max(program.num_args, 0))) {
      program.arg_read.push_back(read);
      program.arg_written.push_back(written);
    } else if (read || written) {
      line.wrong("only args are read or written from outside");
    }
    const auto literal = line.value("literal");
    if (!literal) return;
    if (!literal->starts_with("0x")) return line.wrong("a literal starts with 0x");
    program.literals.emplace_back(static_cast<int32_t>(id), from_hex(literal->substr(2)));
  }

  void parse_work(LineReader& line, Work& work) {
    fields(line, work);
    for (int d = 0; d < kNumDTypes; ++d) {
      int64_t products = 0;
      line.get(info(static_cast<DType>(d)).name, products);
      if (products != 0) work.products.emplace_back(static_cast<DType>(d), products);
    }
  }

  // Where samples are expected, absent strides are zero on every axis.
  SampleRange parse_samples(LineReader& line, bool expected) {
    SampleRange range;
    read_keys(line, range);
    if (range.stride.empty() && expected) range.stride.assign(role.mesh.size(), 0);
    return range;
  }

  void parse_instruction(LineReader& line) {
    line.expect_position(instructions_->size());
    Instruction& one = instructions_->emplace_back();
    fields(line, one);
    one.samples = parse_samples(line, one.kind == InstructionKind::kInput);
  }

  void parse_sum(LineReader& line) {
    if (!instructions_ || instructions_->empty()) return line.wrong("this line belongs to nothing");
    Instruction& one = instructions_->back();
    const std::string_view word = line.raw();
    bool known = false;
    each_sum(one, [&](std::string_view name, auto& parts) {
      if (word != name) return;
      known = true;
      fields(line, parts.emplace_back());
    });
    if (!known) return line.wrong(fmt::format("an instruction has no '{}'", word));
    if (word != "contribution") return;
    SampleRange samples = parse_samples(line, true);
    if (one.contributions.size() > 1 && samples != one.samples)
      line.wrong("contributions of one instruction are of the same samples");
    one.samples = std::move(samples);
  }

  std::map<std::string, int32_t> tensors_;  // by name: the last one
  std::vector<Instruction>* instructions_ = nullptr;
};

}  // namespace

void PlanNames::read(LineReader& line, std::string_view text, TensorCut& to) const {
  if (const size_t sign = text.find('#'), block = text.find(':');
      text.starts_with('S') && block < sign && sign != text.npos) {
    to.axis = -1;
    line.read(text.substr(1, block - 1), to.dim);
    line.read(text.substr(block + 1, sign - block - 1), to.block);
    return line.read(text.substr(sign + 1), to.outer);
  }
  const size_t at = text.find('@'), colon = std::min(text.find(':'), at),
               slash = std::min(text.find('/'), colon);
  if (!text.starts_with('S') || at == text.npos)
    return line.wrong(fmt::format("'{}' is no cut", text));
  line.read(text.substr(1, slash - 1), to.dim);
  if (slash < colon) line.read(text.substr(slash + 1, colon - slash - 1), to.outer);
  if (colon < at) line.read(text.substr(colon + 1, at - colon - 1), to.block);
  line.read(text.substr(at + 1), to.axis);
}

Result<RoleProgram> parse_plan(std::string_view text) {
  Parser parser;
  Status read = read_lines(text, "plan", [&](LineReader& line) { parser.parse(line); });
  if (!read) return std::move(read).error().with_code(ExitCode::kPlan);
  return std::move(parser.role);
}

}  // namespace piper
