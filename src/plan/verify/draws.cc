// Random numbers. Rule microbatch: numbers that a backward pass draws again were drawn by a forward
// pass, with the same op, key and step. Rule single: with each key, a plan draws for the same
// elements as one device does. (Rule sum checks the samples, and rule layout the blocks.)
#include <algorithm>
#include <map>
#include <set>

#include "piper/ir/ops.h"
#include "single.h"
#include "values.h"

namespace piper {
namespace {

struct Draw {
  size_t op = 0;
  int32_t key = -1, step = -1;  // arguments, or -1
};
std::vector<Draw> draws_of(const Program& program) {
  std::vector<Draw> draws;
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    const OpDef* def = find_op(op.op);
    if (!def || def->draws < 0 || op.inputs.size() < static_cast<size_t>(def->draws) + 2) continue;
    const auto arg = [&](int i) {
      const int32_t input = op.inputs[static_cast<size_t>(i)];
      return input < program.num_args ? input : -1;
    };
    draws.push_back({o, arg(def->draws), arg(def->draws + 1)});
  }
  return draws;
}

// Finds forward computations: those on which sums other than gradients depend (loss, counts,
// statistics). Goes back from contributions to such sums, through messages and collectives, up to
// samples and states.
class Forwards {
 public:
  Forwards(const Model& model, const Section& section) : model_(model), section_(section) {
    for (const Cell& cell : model.cells) needed_.emplace_back(cell.facts->buffers.size());
    for (const auto& steps : section.steps) is_forward_.emplace_back(steps.size());
    for (size_t i = section.order.size(); i-- > 0;) visit(section.order[i]);
  }
  bool has(Spot place) const { return is_forward_[place.cell][place.index]; }

 private:
  void visit(Spot place) {
    const Step& step = section_.step(place);
    if (is_collective(step.kind)) return visit_all(section_.members(place));
    if (step.kind == InstructionKind::kRecv) return receive(place);
    const std::vector<Contribution>& made = section_.at(place).contributions;
    const RoleFacts& facts = *model_.cells[place.cell].facts;
    const bool adds = std::any_of(made.begin(), made.end(), [&](const Contribution& part) {
      return !model_.is_gradient[facts.targets[part.target]];
    });
    if (!take_written(place) && !adds) return;
    is_forward_[place.cell][place.index] = true;
    need_read(place);
  }
  void visit_all(std::span<const Spot> members) {
    bool some = false;
    for (const Spot member : members) some = take_written(member) || some;
    for (const Spot member : members)
      if (some) need_read(member);
  }
  void receive(Spot place) {
    const Spot send = section_.partner[place.cell][place.index];
    const std::vector<int32_t>&to = section_.at(place).args, &from = section_.at(send).args;
    for (size_t a = 0; a < to.size(); ++a)
      if (std::exchange(needed_[place.cell][to[a]], false)) need(send.cell, from[a]);
  }
  // Returns whether a result of the instruction is needed. What its buffers held before no longer
  // is.
  bool take_written(Spot place) {
    const Step& step = section_.step(place);
    const auto args = section_.args_of(place.cell, step);
    bool some = false;
    for (size_t a = 0; a < args.size(); ++a)
      if (access_of(*model_.cells[place.cell].facts, step, a) & kWrites)
        some = std::exchange(needed_[place.cell][args[a]], false) || some;
    return some;
  }
  void need_read(Spot place) {
    const Step& step = section_.step(place);
    const auto args = section_.args_of(place.cell, step);
    for (size_t a = 0; a < args.size(); ++a)
      if (access_of(*model_.cells[place.cell].facts, step, a) & kReads) need(place.cell, args[a]);
  }
  void need(int32_t cell, int32_t buffer) {
    if (model_.cells[cell].facts->buffers[buffer].kind == BufferKind::kStep)
      needed_[cell][buffer] = true;
  }

  const Model& model_;
  const Section& section_;
  std::vector<std::vector<uint8_t>> needed_, is_forward_;  // by cell and buffer, or instruction
};

// Returns a symbol for a key tensor: keys with the same initial values are the same key.
uint64_t key_of(const Tensor* key) {
  return key ? symbol_of(key->init.empty() ? key->name : key->init) : 0;
}

// Says for which elements an op draws: its attributes, and the number of elements of the whole
// block of samples, without padding. Cuts and padding are undone from the last one to the first.
struct Drawn {
  uint64_t how = 0;
  int64_t elements = 0;
  bool operator==(const Drawn&) const = default;
};
Drawn drawn_by(const ProgramOp& op, const Shape& own) {
  const std::vector<int64_t> cuts = op.attrs.integers("cuts"), zeros = op.attrs.integers("zeros");
  int64_t elements = num_elements(own);
  for (size_t c = cuts.size() / 2 + 1; c-- > 0;) {
    for (size_t z = 0; z + 2 < zeros.size(); z += 3)
      if (zeros[z] == static_cast<int64_t>(c)) elements -= zeros[z + 1] * zeros[z + 2];
    if (c > 0) elements *= cuts[2 * c - 1];
  }
  return {symbol_of(op.op + print_attrs(without(op.attrs, {"cuts", "zeros", "shape"}))), elements};
}
// Returns whether padding is only where a cut needs it: in each stretch of the dim that is cut.
bool has_zeros_at_cuts(const ProgramOp& op) {
  const std::vector<int64_t> cuts = op.attrs.integers("cuts"), zeros = op.attrs.integers("zeros");
  for (size_t z = 0; z + 2 < zeros.size(); z += 3) {
    const auto cut = 2 * static_cast<size_t>(zeros[z]);
    if (cut >= cuts.size() || zeros[z + 1] != std::abs(cuts[cut])) return false;
  }
  return true;
}

class DrawCheck {
 public:
  DrawCheck(const Model& model, const Section& section, const Single* single, Findings& findings)
      : model_(model), section_(section), single_(single), findings_(findings) {
    draws_.resize(model.facts.size());
    for (const Cell& cell : model.cells) {
      auto& of_role = draws_[role_of(cell)];
      for (size_t p = of_role.size(); p < cell.role->programs.size(); ++p) {
        of_role.push_back(draws_of(cell.role->programs[p]));
        some_ = some_ || !of_role.back().empty();
      }
    }
  }

  void run() {
    if (!some_) return;
    if (single_) find_on_one();
    const Forwards forwards(model_, section_);
    for (const bool forward : {true, false})
      for (const Spot place : section_.order) {
        const Step& step = section_.step(place);
        if (step.kind != InstructionKind::kCompute || forwards.has(place) != forward) continue;
        const auto program = static_cast<size_t>(step.program);
        for (const Draw& draw : draws_[role_of(model_.cells[place.cell])][program])
          visit(place, draw, forward);
      }
  }

 private:
  size_t role_of(const Cell& cell) const {
    return static_cast<size_t>(cell.facts - model_.facts.data());
  }
  static const Tensor* bound(const RoleProgram& role, const Instruction& one, int32_t arg) {
    if (arg < 0) return nullptr;
    const Tensor& tensor = role.tensor(one.args[static_cast<size_t>(arg)]);
    // Where steps overlap, the previous version of the step's number is the same number.
    return tensor.previous_of < 0 ? &tensor : &role.tensor(tensor.previous_of);
  }
  static std::string shown(const Tensor* tensor) {
    return tensor ? quote_control(tensor->name) : "";
  }
  static Drawn drawn_in(const Program& program, const ProgramOp& op) {
    return drawn_by(op, program.values[static_cast<size_t>(op.outputs[0])].shape);
  }

  // Fills on_one_: by key, for which elements one device draws.
  void find_on_one() {
    const RoleProgram& role = *single_->model.cells[0].role;
    for (const Instruction& one : role.body) {
      if (one.kind != InstructionKind::kCompute) continue;
      const Program& program = role.programs[static_cast<size_t>(one.program)];
      for (const Draw& draw : draws_of(program)) {
        std::vector<Drawn>& known = on_one_[key_of(bound(role, one, draw.key))];
        const Drawn made = drawn_in(program, program.ops[draw.op]);
        if (std::find(known.begin(), known.end(), made) == known.end()) known.push_back(made);
      }
    }
  }

  void check_single(Spot place, const Program& program, const ProgramOp& op, const Tensor* key) {
    const std::vector<Drawn>& known = on_one_[key_of(key)];
    const bool is_known =
        !single_ || std::find(known.begin(), known.end(), drawn_in(program, op)) != known.end();
    if ((!is_known || !has_zeros_at_cuts(op)) && said_of_.insert(key_of(key)).second)
      findings_.add("single", "{} draws {} with key '{}' for other elements than one device does",
                    name_of(model_, section_, place), op.op, shown(key));
  }

  void visit(Spot place, const Draw& draw, bool forward) {
    const RoleProgram& role = *model_.cells[place.cell].role;
    const Instruction& one = section_.at(place);
    const Program& program = role.programs[static_cast<size_t>(one.program)];
    const ProgramOp& op = program.ops[draw.op];
    const Tensor *key = bound(role, one, draw.key), *step = bound(role, one, draw.step);
    // A backward may draw for other parts than the forward: rule layout checks that.
    uint64_t symbol = join_symbols(symbol_of(op.op),
                                   symbol_of(print_attrs(without(op.attrs, {"cuts", "zeros"}))));
    if (key) symbol = join_symbols(symbol, key_of(key));
    if (step) symbol = join_symbols(symbol, symbol_of(step->name));
    if (forward)
      drawn_.insert(symbol);
    else if (!drawn_.contains(symbol) && said_.insert(symbol).second)
      findings_.add("microbatch", "{} draws {} with key '{}' and step '{}', but no forward does",
                    name_of(model_, section_, place), op.op, shown(key), shown(step));
    check_single(place, program, op, key);
  }

  const Model& model_;
  const Section& section_;
  const Single* const single_;
  Findings& findings_;
  std::vector<std::vector<std::vector<Draw>>> draws_;  // by role and program
  bool some_ = false;
  std::map<uint64_t, std::vector<Drawn>> on_one_;
  std::set<uint64_t> drawn_, said_,
      said_of_;  // draws; of these and of keys, those that were reported
};

}  // namespace

void check_draws(const Model& model, const Section& section, const Single* single,
                 Findings& findings) {
  DrawCheck(model, section, single, findings).run();
}

}  // namespace piper
