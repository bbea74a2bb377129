// Reshapes and their like -> views.
#include <algorithm>
#include <map>

#include "piper/ir/ops.h"
#include "steps.h"

namespace piper {
namespace {

// Returns the byte of the input at which the output's bytes are, when the op only names them
// again.
std::optional<int64_t> renamed_at(const FusedProgram& program, const ProgramOp& op) {
  if (op.inputs.size() != 1 || op.outputs.size() != 1 || op.inputs[0] < 0) return std::nullopt;
  const TensorType& from = program.values[at(op.inputs[0])];
  const TensorType& to = program.values[at(op.outputs[0])];
  const OpDef* def = find_op(op.op);
  return def && def->first_byte ? def->first_byte(from, to, op.attrs) : std::nullopt;
}

class ViewMaker {
 public:
  explicit ViewMaker(FusedProgram& program)
      : program_(program), uses_(program), literal_(program.values.size()) {
    for (const auto& [value, bytes] : program.literals) literal_[at(value)] = true;
  }

  int64_t run() {
    std::vector<ProgramOp> kept;
    const size_t count = program_.ops.size();
    for (size_t o = 0; o < count; ++o) {
      ProgramOp& op = program_.ops[o];
      const auto from = renamed_at(program_, op);
      if (!from || !(read_as_view(o, op, *from) || make_in_place(op, *from)))
        kept.push_back(std::move(op));
    }
    program_.ops = std::move(kept);
    for (const auto& [value, view] : views_) program_.views.push_back(view);
    return static_cast<int64_t>(count - program_.ops.size());
  }

 private:
  bool is_arg(int32_t value) const { return value < program_.num_args; }
  ProgramView root(int32_t value) const {
    const auto it = views_.find(value);
    return it == views_.end() ? ProgramView{value, value, 0} : it->second;
  }

  // The output becomes a view of what the op reads, when that keeps its bytes long enough.
  bool read_as_view(size_t o, const ProgramOp& op, int64_t offset) {
    const int32_t out = op.outputs[0];
    const ProgramView source = root(op.inputs[0]);
    if (is_arg(out) || literal_[at(source.base)]) return false;
    if (is_arg(source.base)) {
      // A reader of the view may itself be renamed: nothing may write the argument from here on.
      const auto& writes = uses_.writers(source.base);
      if (!uses_.readers(out).empty() && !writes.empty() && writes.back() > o) return false;
    }
    views_[out] = {out, source.base, source.offset + offset};
    return true;
  }

  // Makes what the op reads in the argument that the op writes, when nothing else touches it.
  bool make_in_place(const ProgramOp& op, int64_t offset) {
    const int32_t in = op.inputs[0], out = op.outputs[0];
    if (!is_arg(out) || is_arg(in) || literal_[at(in)] || root(in).base != in || offset != 0 ||
        program_.arg_read[at(out)] || uses_.writers(out).size() != 1 ||
        program_.values[at(in)].bytes() != program_.values[at(out)].bytes())
      return false;
    for (auto& [value, view] : views_)
      if (view.base == in) view.base = out;
    views_[in] = {in, out, 0};
    return true;
  }

  FusedProgram& program_;
  const ProgramUses uses_;  // as there are no views yet, of each value itself
  std::vector<bool> literal_;
  std::map<int32_t, ProgramView> views_;
};

}  // namespace

void make_views(FusedProgram& program, FuseCounts& counts) {
  counts.views += ViewMaker(program).run();
}

}  // namespace piper
