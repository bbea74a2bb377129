#include <algorithm>
#include <cmath>

#include "files.h"
#include "text.h"

namespace piper {
namespace {

template <class Integers>
std::string list(const Integers& values) {
  std::string text = "[";
  for (const auto value : values) text += fmt::format("{}{}", text.size() > 1 ? "," : "", value);
  return text + "]";
}

std::string texts(const std::vector<std::string>& values) {
  std::string text = "[";
  for (const std::string& value : values) text += (text.size() > 1 ? "," : "") + quote(value);
  return text + "]";
}

// "S1/3:8@0": blocks of dim 1 over axis 0, of each of 3 stretches, of 8 elements if not equal ones.
std::string cuts_text(const std::vector<TensorCut>& cuts) {
  std::string text = "[";
  for (const auto& [axis, dim, outer, block] : cuts)
    text += fmt::format("{}S{}{}{}@{}", text.size() > 1 ? "," : "", dim,
                        outer == 1 ? "" : fmt::format("/{}", outer),
                        block == 0 ? "" : fmt::format(":{}", block), axis);
  return text + "]";
}

// Appends lines; a field is printed unless it has its default.
class Printer {
 public:
  template <class... Args>
  Printer& line(fmt::format_string<Args...> text, Args&&... args) {
    if (!out.empty()) out += '\n';
    out += fmt::format(text, std::forward<Args>(args)...);
    return *this;
  }
  template <class Value>
  Printer& field(const char* key, const Value& value, const Value& normal) {
    if (value != normal) out += fmt::format(" {}={}", key, value);
    return *this;
  }
  Printer& text(const char* key, const std::string& value) {
    if (!value.empty()) out += fmt::format(" {}={}", key, quote(value));
    return *this;
  }
  template <class Values>
  Printer& integers(const char* key, const Values& values) {
    if (!values.empty()) out += fmt::format(" {}={}", key, list(values));
    return *this;
  }
  Printer& flag(const char* key, bool value) {
    if (value) out += fmt::format(" {}", key);
    return *this;
  }

  std::string out;
};

void print_work(Printer& print, const Work& work) {
  if (work == Work()) return;
  print.line("  work").field("ops", work.ops, int64_t{0});
  print.field("recomputed", work.recomputed, int64_t{0});
  for (const auto& [dtype, count] : work.products) print.field(info(dtype).name, count, int64_t{0});
}

void print_program(Printer& print, size_t id, const Program& program) {
  print.line("program {}", id).text("label", program.label);
  print.field("args", program.num_args, 0).field("workspace", program.workspace_bytes, int64_t{0});
  std::vector<const std::string*> literal(program.values.size());
  for (const auto& [value, data] : program.literals) literal[static_cast<size_t>(value)] = &data;
  std::vector<ProgramView> view(program.values.size(), ProgramView{0, -1, 0});
  for (const ProgramView& one : program.views) view[static_cast<size_t>(one.value)] = one;
  for (size_t v = 0; v < program.values.size(); ++v) {
    print.line("  value {} {}", v, to_string(program.values[v]));
    if (v < program.arg_read.size()) print.flag("read", program.arg_read[v]);
    if (v < program.arg_written.size()) print.flag("written", program.arg_written[v]);
    print.field("at", program.offsets[v], int64_t{-1});
    print.field("view", view[v].base, -1).field("from", view[v].offset, int64_t{0});
    if (!literal[v]) continue;
    std::string digits;
    for (const char c : *literal[v]) digits += fmt::format("{:02x}", static_cast<uint8_t>(c));
    print.out += fmt::format(" literal=0x{}", digits);
  }
  for (const ProgramOp& op : program.ops) {
    print.line("  op {} in={} out={}", op.op, list(op.inputs), list(op.outputs));
    if (!op.attrs.items().empty()) print.out += " " + print_attrs(op.attrs);
  }
  print_work(print, program.work);
}

void print_samples(Printer& print, const SampleRange& range, size_t axes) {
  print.field("first", range.first, int64_t{0}).field("count", range.count, int64_t{0});
  const bool plain =
      range.stride.size() == axes &&
      std::all_of(range.stride.begin(), range.stride.end(), [](int64_t s) { return s == 0; });
  if (!plain) print.out += fmt::format(" stride={}", list(range.stride));
}

void print_instruction(Printer& print, size_t id, const Instruction& one, size_t axes) {
  print.line("  {} {}", id, to_string(one.kind)).text("label", one.label);
  print.field("stream", one.stream, 0).field("program", one.program, -1).integers("args", one.args);
  print.integers("waits", one.waits).integers("peer", one.peer).field("channel", one.channel, 0);
  print.field("group", one.group, -1).field("root", one.root, 0).text("input", one.input);
  print.field("dim", one.dim, -1).field("outer", one.outer, int64_t{1});
  print.field("to_dim", one.to_dim, -1).field("to_outer", one.to_outer, int64_t{1});
  print.field("turn", one.turn, 0);
  print.field("owned", one.owned, int64_t{0});
  print.flag("max", one.reduction == Reduction::kMax);
  if (one.kind == InstructionKind::kInput) print_samples(print, one.samples, axes);
  if (one.pass != ' ') print.text("pass", std::string(1, one.pass));
  print.field("stage", one.stage, -1).field("micro", one.micro, -1);
  print.field("micros", one.micros, 1);
  print.field("ahead", one.ahead, 0);
  for (const Contribution& part : one.contributions) {
    print.line("    contribution").field("arg", part.arg, 0).field("target", part.target, 0);
    print.field("use", part.use, 0);
    print_samples(print, one.samples, axes);
    print.flag("accumulates", part.accumulates);
  }
  for (const SumCombine& part : one.combines)
    print.line("    combine").field("arg", part.arg, 0).integers("from", part.from);
  for (const SumRead& part : one.sum_reads)
    print.line("    sum_read").field("arg", part.arg, 0).field("target", part.target, 0);
}

void print_buffer(Printer& print, const RoleProgram& role, size_t b) {
  const Buffer& buffer = role.buffers[b];
  const Tensor& tensor = role.tensor(buffer);
  print.line("buffer {} {} {} {} at={}", b, quote(role.name(buffer)), to_string(tensor.type),
             kBufferKinds[static_cast<size_t>(tensor.kind)], buffer.offset);
  print.flag("host", tensor.host).text("init", tensor.init);
  if (tensor.fill != 0 || std::signbit(tensor.fill))
    print.out += fmt::format(" fill={}", tensor.fill);
  print.text("param", tensor.param);
  if (!tensor.aliases.empty()) print.out += " aliases=" + texts(tensor.aliases);
  if (!tensor.cuts.empty()) print.out += " cuts=" + cuts_text(tensor.cuts);
  print.field("part_of", tensor.part_of, -1).integers("whole", tensor.whole);
  print.field("previous_of", tensor.previous_of, -1);
  print.field("packed_of", tensor.packed_of, -1);
}

void print_tables(Printer& print, const RoleProgram& role) {
  print.line("plan")
      .field("steps_ahead", role.steps_ahead, 0)
      .field("batch", role.batch, int64_t{0})
      .field("arena", role.arena_bytes, int64_t{0});
  print.integers("workspace", role.workspace_bytes)
      .field("transport", role.transport_bytes, int64_t{0})
      .field("scratch", role.scratch_bytes, int64_t{0})
      .field("host", role.host_bytes, int64_t{0});
  for (const auto& [name, size] : role.mesh) print.line("axis {} {}", quote(name), size);
  for (size_t s = 0; s < role.streams.size(); ++s)
    print.line("stream {} {}", s, quote(role.streams[s].name))
        .field("priority", role.streams[s].priority, 0)
        .field("sms", role.streams[s].sms, int64_t{0});
  for (size_t g = 0; g < role.groups.size(); ++g)
    print.line("group {} {}", g, quote(role.groups[g].name)).integers("axes", role.groups[g].axes);
  for (const DataInput& input : role.inputs) {
    print.line("input {} {}", quote(input.name), to_string(input.type));
    print.field("batch_dim", input.batch_dim, 0).field("low", input.low, int64_t{0});
    print.field("high", input.high, int64_t{0}).field("ignore", input.ignore, INT64_MIN);
  }
  for (size_t t = 0; t < role.sum_targets.size(); ++t)
    print.line("sum {} {}", t, quote(role.sum_targets[t].name))
        .field("uses", role.sum_targets[t].uses, 1);
  for (size_t b = 0; b < role.buffers.size(); ++b) print_buffer(print, role, b);
}

}  // namespace

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    else
      out += c;
  }
  return out + "\"";
}

std::string print_plan(const RoleProgram& role) {
  Printer print;
  print_tables(print, role);
  for (size_t p = 0; p < role.programs.size(); ++p) print_program(print, p, role.programs[p]);
  const std::pair<const char*, const std::vector<Instruction>*> parts[] = {
      {"prologue", &role.prologue}, {"body", &role.body}, {"epilogue", &role.epilogue}};
  for (const auto& [name, instructions] : parts) {
    if (instructions->empty()) continue;
    print.line("{}", name);
    for (size_t i = 0; i < instructions->size(); ++i)
      print_instruction(print, i, (*instructions)[i], role.mesh.size());
  }
  for (const Report& report : role.reports)
    print.line("report {} buffer={}", quote(report.name), report.buffer);
  return print.out + "\n";
}

}  // namespace piper
