// Prints role programs as text.
#include <algorithm>

#include "text.h"

namespace piper {
namespace {

class Printer {
 public:
  // Returns a line's start; what follows is appended to `out`.
  template <class... Args>
  std::string& line(fmt::format_string<Args...> text, Args&&... args) {
    if (!out.empty()) out += '\n';
    return out += fmt::format(text, std::forward<Args>(args)...);
  }
  template <class X>
  void fields(const X& from) {
    print_fields(out, from, PlanNames());
  }

  void work(const Work& work) {
    if (work == Work()) return;
    line("  work");
    fields(work);
    for (const auto& [dtype, count] : work.products)
      out += fmt::format(" {}={}", info(dtype).name, count);
  }

  void value(const Program& program, size_t v) {
    line("  value {} {}", v, to_string(program.values[v]));
    if (v < program.arg_read.size() && program.arg_read[v]) out += " read";
    if (v < program.arg_written.size() && program.arg_written[v]) out += " written";
  }
  void program(size_t id, const Program& program) {
    line("program {}", id);
    fields(program);
    std::vector<std::string> more(program.values.size());
    for (const auto& [v, data] : program.literals) {
      std::string& text = more[static_cast<size_t>(v)] += " literal=0x";
      for (const char c : data) text += fmt::format("{:02x}", static_cast<uint8_t>(c));
    }
    for (size_t v = 0; v < program.values.size(); ++v) {
      value(program, v);
      out += more[v];
    }
    for (const ProgramOp& op : program.ops) {
      line("  op");
      fields(op);
      if (!op.attrs.items().empty()) out += " " + print_attrs(op.attrs);
    }
    work(program.work);
  }

  // A stride of 0 on all axes is left out.
  void samples(SampleRange range, size_t axes) {
    const std::vector<int64_t>& stride = range.stride;
    if (stride.size() == axes && std::count(stride.begin(), stride.end(), 0) == std::ssize(stride))
      range.stride.clear();
    fields(range);
  }
  void instruction(size_t id, const Instruction& one, size_t axes) {
    line("  {}", id);
    fields(one);
    if (one.kind == InstructionKind::kInput) samples(one.samples, axes);
    each_sum(one, [&](const char* word, const auto& parts) {
      for (const auto& part : parts) {
        line("    {}", word);
        fields(part);
        if (&parts == static_cast<const void*>(&one.contributions)) samples(one.samples, axes);
      }
    });
  }

  void buffer(const RoleProgram& role, size_t b) {
    const Tensor& tensor = role.tensor(role.buffers[b]);
    line("buffer {} {}", b, quote(role.name(role.buffers[b])));
    print_words(out, tensor, PlanNames());
    print_keys(out, role.buffers[b], PlanNames());
    print_keys(out, tensor, PlanNames());
  }

  std::string out;
};

}  // namespace

std::string PlanNames::print(const TensorCut& cut) const {
  if (cut.axis < 0) return fmt::format("S{}:{}#{}", cut.dim, cut.block, cut.outer);
  return fmt::format("S{}{}{}@{}", cut.dim, cut.outer == 1 ? "" : fmt::format("/{}", cut.outer),
                     cut.block == 0 ? "" : fmt::format(":{}", cut.block), cut.axis);
}

std::string print_plan(const RoleProgram& role) {
  Printer print;
  print.line("plan");
  print.fields(role);
  each_table(role, [&](const char* word, const auto& table, bool numbered) {
    for (size_t i = 0; i < table.size(); ++i) {
      print.line("{}{}", word, numbered ? fmt::format(" {}", i) : "");
      print.fields(table[i]);
    }
  });
  for (size_t b = 0; b < role.buffers.size(); ++b) print.buffer(role, b);
  for (size_t p = 0; p < role.programs.size(); ++p) print.program(p, role.programs[p]);
  const auto instructions = [&](const std::vector<Instruction>& list) {
    for (size_t i = 0; i < list.size(); ++i) print.instruction(i, list[i], role.mesh.size());
  };
  each_section(role, [&](const char* word, const std::vector<Instruction>& list) {
    if (!list.empty()) print.line("{}", word);
    instructions(list);
  });
  for (const OuterUpdate& update : role.outer_updates) {
    print.line("outer");
    print.fields(update);
    instructions(update.instructions);
  }
  return print.out + "\n";
}

}  // namespace piper
