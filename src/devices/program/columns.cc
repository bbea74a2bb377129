// Slices that only an attention reads, and a Concat of the gradients that it makes -> columns.
#include <algorithm>
#include <optional>

#include "piper/devices/kernel_use.h"
#include "steps.h"

namespace piper {
namespace {

// Names columns [first, first + count) of a tensor seen as rows of `row` elements.
struct Columns {
  int64_t first = 0, count = 0, row = 0;
};

// Returns what a Slice along one dim takes of its input.
std::optional<Columns> columns_of(const ProgramOp& op, const Shape& from, const Shape& to) {
  const std::vector<int64_t> starts = op.attrs.integers("starts"),
                             steps = op.attrs.integers("steps");
  std::optional<Columns> columns;
  if (starts.size() != from.size() || num_elements(to) == 0) return std::nullopt;
  for (size_t d = 0; d < from.size(); ++d) {
    if (!steps.empty() && steps[d] != 1) return std::nullopt;
    if (to[d] == from[d]) continue;
    if (columns) return std::nullopt;
    const int64_t start = starts[d] < 0 ? starts[d] + from[d] : starts[d],
                  inner = extent(from, d + 1, from.size());
    columns = Columns{start * inner, to[d] * inner, from[d] * inner};
  }
  return columns;
}

class ColumnMaker {
 public:
  explicit ColumnMaker(FusedProgram& program)
      : program_(program), uses_(program), gone_(program.ops.size()) {}

  int64_t run() {
    for (size_t o = 0; o < program_.ops.size(); ++o) {
      if (program_.ops[o].op == "Attention" || program_.ops[o].op == "AttentionGrad") read(o);
      if (program_.ops[o].op == "AttentionGrad") write(o);
    }
    size_t o = 0;
    return static_cast<int64_t>(
        std::erase_if(program_.ops, [&](const ProgramOp&) { return gone_[o++]; }));
  }

 private:
  const Shape& shape(int32_t value) const { return program_.values[at(value)].shape; }

  // Returns the local of which the value is the whole, under whatever shape; -1 when there is none.
  int32_t whole_local(int32_t value) const {
    const int32_t base = uses_.base(value);
    const bool whole = program_.values[at(base)].bytes() == program_.values[at(value)].bytes();
    return base >= program_.num_args && whole && uses_.writers(base).size() == 1 ? base : -1;
  }
  bool tokens_first(const ProgramOp& op) const {
    const auto first = op.attrs.integers("tokens_first");
    return first.size() == 4 && first[0] == 1 && first[1] == 1 && first[2] == 1;
  }

  // Returns whether nothing writes the value after op `from`, up to op `to`.
  bool stays(int32_t value, size_t from, size_t to) const {
    return std::ranges::none_of(uses_.writers(value), [&](size_t w) { return w > from && w < to; });
  }

  // q, k and v are Slices of one tensor.
  void read(size_t o) {
    ProgramOp& op = program_.ops[o];
    const Shape q = shape(op.inputs[0]), k = shape(op.inputs[1]), v = shape(op.inputs[2]);
    if (!tokens_first(op) || q[1] != k[1] || q[3] != v[3]) return;
    int32_t from = -1;
    std::vector<int64_t> columns;
    std::vector<size_t> slices;
    for (size_t i = 0; i < 3; ++i) {
      const int32_t local = whole_local(op.inputs[i]);
      if (local < 0) return;
      const size_t s = uses_.writers(local)[0];
      const ProgramOp& slice = program_.ops[s];
      if (slice.op != "Slice") return;
      const auto part = columns_of(slice, shape(slice.inputs[0]), shape(slice.outputs[0]));
      const Shape& whole = shape(op.inputs[i]);
      if (!part || part->count != whole[2] * whole[3] || (i > 0 && slice.inputs[0] != from) ||
          !stays(slice.inputs[0], s, o))
        return;
      from = slice.inputs[0];
      columns.push_back(part->first);
      slices.push_back(s);
    }
    op.inputs[0] = op.inputs[1] = op.inputs[2] = from;
    op.attrs.set("columns", columns);
    op.attrs.set("kv_heads", k[2]);
    for (size_t s : slices) {
      auto& readers = uses_.readers(program_.ops[s].outputs[0]);
      std::erase(readers, o);
      gone_[s] = gone_[s] || readers.empty();
    }
  }

  // dq, dk and dv are all that one Concat reads, and nothing else reads them.
  void write(size_t o) {
    ProgramOp& op = program_.ops[o];
    if (!op.attrs.find("columns")) return;
    std::vector<int32_t> made(op.outputs.begin(), op.outputs.begin() + 3);
    size_t c = ProgramUses::kNone;
    for (int32_t value : made) {
      const auto& readers = uses_.readers(value);
      if (whole_local(value) != value || readers.size() != 1 ||
          (c != ProgramUses::kNone && readers[0] != c))
        return;
      c = readers[0];
    }
    const ProgramOp& concat = program_.ops[c];
    if (concat.op != "Concat" || concat.inputs.size() != 3 || !free_between(o, c)) return;
    const auto axis = static_cast<size_t>(concat.attrs.integer("axis"));
    std::vector<int64_t> columns(3);
    int64_t first = 0;
    for (int32_t input : concat.inputs) {
      const auto i = std::find(made.begin(), made.end(), whole_local(input)) - made.begin();
      const Shape& gradient = shape(made[static_cast<size_t>(i)]);
      const int64_t count = extent(gradient, 2, gradient.size());
      if (extent(shape(input), axis, shape(input).size()) != count) return;
      columns[static_cast<size_t>(i)] = first;
      first += count;
    }
    op.outputs.erase(op.outputs.begin(), op.outputs.begin() + 3);
    op.outputs.insert(op.outputs.begin(), concat.outputs[0]);
    op.attrs.set("grad_columns", columns);
    gone_[c] = true;
  }

  // Returns whether what op `c` writes may be written by op `o` before it.
  bool free_between(size_t o, size_t c) const {
    const int32_t out = program_.ops[c].outputs[0];
    const auto outside = [&](size_t other) { return other < o || other > c || other == c; };
    return std::ranges::all_of(uses_.readers(out), outside) &&
           std::ranges::all_of(uses_.writers(out), outside);
  }

  FusedProgram& program_;
  ProgramUses uses_;
  std::vector<bool> gone_;  // by op
};

}  // namespace

void make_columns(FusedProgram& program, FuseCounts& counts) {
  counts.views += ColumnMaker(program).run();
}

}  // namespace piper
