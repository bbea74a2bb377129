// Why these bounds: to pack an element takes 0.15 ns where the matrix stays in the second-level
// cache, up to 0.6 ns where it does not, and spares each product about 0.08 ns: 10 % with 32 rows,
// 2 % with 128. So some products must share a copy, and more of them where they have more rows and
// less to win; then the copy wins 3 % of their time or more.
#include "pack.h"

#include <algorithm>
#include <map>

#include "piper/base/memory.h"
#include "piper/plan/access.h"

namespace piper::cpu {
namespace {

size_t at(int64_t id) { return static_cast<size_t>(id); }

// Says how a program reads an argument: as the right operand of products, as it is stored or
// transposed; or otherwise; or not at all.
enum class Form : uint8_t { kUnread, kStored, kTransposed, kOther };

Form form_of(const Program& program, const ProgramOp& op, int64_t most_rows) {
  if (op.op != "MatMul") return Form::kOther;
  const TensorType &b = program.values[at(op.inputs[1])], &out = program.values[at(op.outputs[0])];
  const bool floats = b.dtype == DType::kF32 || b.dtype == DType::kF64;
  if (!floats || op.attrs.integer("trans_a") != 0 || b.shape.size() != 2 || out.shape.empty() ||
      std::min(b.shape[0], b.shape[1]) < kPackedSide ||
      num_elements(out.shape) > most_rows * out.shape.back())
    return Form::kOther;
  return op.attrs.integer("trans_b") != 0 ? Form::kTransposed : Form::kStored;
}

std::vector<Form> forms_of(const Program& program, int64_t most_rows) {
  std::vector<Form> forms(at(program.num_args), Form::kUnread);
  const auto note = [&](int32_t value, Form form) {
    if (value < 0 || value >= program.num_args) return;
    Form& known = forms[at(value)];
    known = known == Form::kUnread || known == form ? form : Form::kOther;
  };
  for (const ProgramOp& op : program.ops) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const bool whole = i == 1 && op.inputs[1] >= 0 && op.inputs[1] < program.num_args;
      note(op.inputs[i], whole ? form_of(program, op, most_rows) : Form::kOther);
    }
    for (int32_t output : op.outputs) note(output, Form::kOther);
  }
  return forms;
}

bool is_packable(const Tensor& tensor) {
  return tensor.kind == BufferKind::kState && !tensor.param.empty() && tensor.part_of < 0;
}

int64_t microbatches_of(const RoleProgram& role) {
  int32_t most = 0;
  for (const Instruction& one : role.body) most = std::max(most, one.micro + one.micros);
  return most;
}

class Packer {
 public:
  Packer(RoleProgram& role, int64_t most_rows) : role_(role) {
    for (const Program& program : role.programs) forms_.push_back(forms_of(program, most_rows));
  }

  void run() {
    const std::vector<bool> changed = changed_before_read();
    for (const Instruction& one : role_.evaluation)  // it comes between two bodies
      if (one.program >= 0)
        std::fill(forms_[at(one.program)].begin(), forms_[at(one.program)].end(), Form::kOther);
    each_arg([&](Instruction& one, size_t a, Form& form) {
      if (!is_packable(role_.tensor(one.args[a])) || changed[at(one.args[a])]) form = Form::kOther;
    });
    for (size_t p = 0; p < forms_.size(); ++p) rewrite(role_.programs[p], forms_[p]);
    each_arg(
        [&](Instruction& one, size_t a, Form& form) { one.args[a] = copy_of(one.args[a], form); });
    put_in_front();
  }

 private:
  template <class F>
  void each_arg(F f) {
    for (Instruction& one : role_.body) {
      if (one.kind != InstructionKind::kCompute) continue;
      std::vector<Form>& forms = forms_[at(one.program)];
      for (size_t a = 0; a < forms.size(); ++a)
        if (forms[a] == Form::kStored || forms[a] == Form::kTransposed) f(one, a, forms[a]);
    }
  }

  bool is_written(const Instruction& one, size_t a) const {
    if (one.kind != InstructionKind::kCompute) return access_of(one.kind, a).writes;
    return role_.programs[at(one.program)].arg_written[a];
  }
  // Returns by buffer whether something that may read it comes after one that writes it.
  std::vector<bool> changed_before_read() const {
    std::vector<bool> written(role_.buffers.size()), changed(role_.buffers.size());
    for (const Instruction& one : role_.body) {
      for (int32_t arg : one.args)
        if (written[at(arg)]) changed[at(arg)] = true;
      for (size_t a = 0; a < one.args.size(); ++a)
        if (is_written(one, a)) written[at(one.args[a])] = true;
    }
    return changed;
  }

  // The first reader of a copy on another stream waits for all of them.
  void put_in_front() {
    const auto count = static_cast<int32_t>(packs_.size());
    if (count == 0) return;
    std::vector<bool> waits(role_.streams.size());
    for (Instruction& one : role_.body) {
      for (int32_t& wait : one.waits) wait += count;
      const bool reads = std::any_of(one.args.begin(), one.args.end(),
                                     [&](int32_t arg) { return arg >= first_copy_; });
      if (one.stream == 0 || !reads || waits[at(one.stream)]) continue;
      waits[at(one.stream)] = true;
      one.waits.insert(one.waits.begin(), count - 1);
    }
    role_.body.insert(role_.body.begin(), packs_.begin(), packs_.end());
  }

  static Shape shape_of(const Shape& from, Form form) {
    return form == Form::kStored ? packed_shape(from[0], from[1]) : packed_shape(from[1], from[0]);
  }

  static void rewrite(Program& program, const std::vector<Form>& forms) {
    const auto packed = [&](int32_t value) {
      return value >= 0 && value < program.num_args &&
             (forms[at(value)] == Form::kStored || forms[at(value)] == Form::kTransposed);
    };
    for (ProgramOp& op : program.ops) {
      if (op.inputs.size() < 2 || !packed(op.inputs[1])) continue;
      op.attrs.set("packed_b", int64_t{forms[at(op.inputs[1])] == Form::kStored ? 1 : 2});
      if (op.attrs.find("trans_b")) op.attrs.set("trans_b", int64_t{0});
    }
    for (int32_t a = 0; a < program.num_args; ++a)
      if (packed(a))
        program.values[at(a)].shape = shape_of(program.values[at(a)].shape, forms[at(a)]);
  }

  int32_t copy_of(int32_t source, Form form) {
    const auto [known, is_new] =
        copies_.try_emplace({source, form}, static_cast<int32_t>(role_.buffers.size()));
    if (!is_new) return known->second;
    const Tensor& from = role_.tensor(source);
    Tensor copy;
    copy.name = from.name + (form == Form::kStored ? ".packed" : ".packed_transposed");
    copy.type = {from.type.dtype, shape_of(from.type.shape, form)};
    Instruction pack;
    pack.program = program_of(from.type, copy.type, form);
    pack.args = {source, known->second};
    pack.label = "pack " + from.name;
    pack.pass = TaskPass::kMove;
    packs_.push_back(std::move(pack));
    const int64_t bytes = copy.type.bytes();
    role_.add_buffer(std::move(copy));
    role_.buffers.back().offset = align_up(role_.arena_bytes);
    role_.arena_bytes = align_up(role_.arena_bytes) + align_up(bytes);
    return known->second;
  }

  int32_t program_of(const TensorType& from, const TensorType& to, Form form) {
    const auto [known, is_new] = programs_.try_emplace({from.dtype, from.shape, form},
                                                       static_cast<int32_t>(role_.programs.size()));
    if (!is_new) return known->second;
    Program& program = role_.programs.emplace_back();
    program.label = "pack";
    program.values = {from, to};
    program.num_args = 2;
    program.ops.push_back({"Pack", {{"trans_b", int64_t{form == Form::kTransposed}}}, {0}, {1}});
    program.arg_read = {true, false};
    program.arg_written = {false, true};
    return known->second;
  }

  RoleProgram& role_;
  const int32_t first_copy_ = static_cast<int32_t>(role_.buffers.size());
  std::vector<std::vector<Form>> forms_;  // by program and argument
  std::map<std::pair<int32_t, Form>, int32_t> copies_;
  std::map<std::tuple<DType, Shape, Form>, int32_t> programs_;
  std::vector<Instruction> packs_;
};

}  // namespace

RoleProgram pack_weights(RoleProgram role) {
  const int64_t microbatches = microbatches_of(role);
  if (microbatches < kPackedTimes || role.steps_ahead > 0) return role;
  Packer(role, std::min(kPackedRows, kPackedRowsEach * microbatches)).run();
  return role;
}

}  // namespace piper::cpu
