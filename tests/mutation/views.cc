// Mutations that move elements as if they lay in other dims: of all that a plan does this changes
// the shapes alone, so only a comparison with the shapes of one device can tell.
#include <map>

#include "mutation/places.h"

namespace piper::mutation {
namespace {

// An op that moves elements, with the shapes of its operands and of its result.
struct Move {
  const ProgramOp* op = nullptr;
  std::vector<Shape> from;
  Shape to;
  std::vector<int64_t> starts, ends, before, after;  // of a Slice, of a Pad
  int64_t axis = 0;
};

// Which elements it takes of an operand, by element of the result; -1: none. Operands count one
// after the other; what takes a row together has the row's first one.
std::vector<int64_t> sources_of(const Move& move) {
  std::vector<int64_t> sources;
  std::vector<int64_t> at(move.to.size());
  const auto axis = static_cast<size_t>(move.axis);
  for (int64_t i = 0; i < num_elements(move.to); ++i) {
    int64_t rest = i;
    for (size_t d = at.size(); d-- > 0; rest /= move.to[d]) at[d] = rest % move.to[d];
    size_t operand = 0;
    int64_t base = 0;
    std::vector<int64_t> of = at;
    if (move.op->op == "Concat")
      for (; of[axis] >= move.from[operand][axis]; ++operand) {
        of[axis] -= move.from[operand][axis];
        base += num_elements(move.from[operand]);
      }
    const Shape& shape = move.from[operand];
    if (move.op->op == "Softmax") of[axis] = 0;
    if (const auto perm = move.op->attrs.integers("perm"); !perm.empty())
      for (size_t d = 0; d < perm.size(); ++d) of[static_cast<size_t>(perm[d])] = at[d];
    of.erase(of.begin(), of.end() - static_cast<std::ptrdiff_t>(shape.size()));
    bool inside = true;
    int64_t flat = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d < move.starts.size()) of[d] += move.starts[d];
      if (d < move.before.size()) of[d] -= move.before[d];
      if (move.op->op == "Expand" && shape[d] == 1) of[d] = 0;
      inside = inside && of[d] >= 0 && of[d] < shape[d];
      flat = flat * shape[d] + of[d];
    }
    sources.push_back(inside ? base + flat : -1);
  }
  return sources;
}

// The same op where dim `up` has `factor` times as many elements and `down` so many times fewer.
std::optional<Move> in_other_dims(Move move, size_t up, size_t down, int64_t factor) {
  const auto change = [&](std::vector<int64_t>& numbers, size_t dims, bool is_repeated) {
    const size_t more = dims - numbers.size();
    if (up < more || down < more) return numbers.empty();
    int64_t &grows = numbers[up - more], &shrinks = numbers[down - more];
    if (is_repeated && grows == 1 && shrinks == 1) return true;
    if (is_repeated && (grows == 1 || shrinks == 1)) return false;
    if (shrinks % factor != 0) return false;
    grows *= factor, shrinks /= factor;
    return true;
  };
  const size_t dims = move.to.size();
  if (const auto perm = move.op->attrs.integers("perm"); !perm.empty()) {
    if (!change(move.from[0], dims, false)) return std::nullopt;
    for (size_t d = 0; d < dims; ++d) move.to[d] = move.from[0][static_cast<size_t>(perm[d])];
    return move;
  }
  bool fits = change(move.to, dims, false) && change(move.starts, dims, false) &&
              change(move.ends, dims, false) && change(move.before, dims, false) && change(move.after, dims, false);
  for (Shape& shape : move.from) fits = fits && change(shape, dims, move.op->op == "Expand");
  return fits ? std::optional(std::move(move)) : std::nullopt;
}

// The same op with a leading dim more, of elements of its last one.
std::optional<Move> in_more_dims(Move move, int64_t factor) {
  if (move.op->op != "Softmax" || move.to.back() % factor != 0) return std::nullopt;
  move.to.insert(move.to.begin(), factor);
  move.to.back() /= factor;
  move.from[0] = move.to;
  move.axis += 1;
  return move;
}

std::optional<Move> move_of(const Program& program, const ProgramOp& op) {
  constexpr std::string_view kMoves[] = {"Slice", "Concat", "Pad", "Expand", "Transpose", "Softmax"};
  if (std::find(std::begin(kMoves), std::end(kMoves), op.op) == std::end(kMoves))
    return std::nullopt;
  const std::vector<int64_t> steps = op.attrs.integers("steps");
  if (std::any_of(steps.begin(), steps.end(), [](int64_t step) { return step != 1; }))
    return std::nullopt;
  Move move{.op = &op,
            .to = program.values[static_cast<size_t>(op.outputs[0])].shape,
            .starts = op.attrs.integers("starts"),
            .ends = op.attrs.integers("ends"),
            .before = op.attrs.integers("before"),
            .after = op.attrs.integers("after"),
            .axis = op.attrs.integer("axis")};
  for (const int32_t input : op.inputs)
    move.from.push_back(program.values[static_cast<size_t>(input)].shape);
  return move;
}

// Reshapes the operands, does the op, and reshapes the result.
void replace(Program& program, size_t at, const Move& move) {
  const ProgramOp op = program.ops[at];
  ProgramOp other = op;
  std::vector<ProgramOp> ops;
  const auto local = [&](int32_t like, const Shape& shape) {
    program.values.push_back({program.values[static_cast<size_t>(like)].dtype, shape});
    return static_cast<int32_t>(program.values.size()) - 1;
  };
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    other.inputs[i] = local(op.inputs[i], move.from[i]);
    ops.push_back({"Reshape", {{"shape", move.from[i]}}, {op.inputs[i]}, {other.inputs[i]}});
  }
  other.outputs[0] = local(op.outputs[0], move.to);
  if (op.op == "Softmax") other.attrs.set("axis", move.axis);
  if (op.op == "Slice") other.attrs.set("starts", move.starts), other.attrs.set("ends", move.ends);
  if (op.op == "Pad") other.attrs.set("before", move.before), other.attrs.set("after", move.after);
  if (op.op == "Expand") other.attrs.set("shape", move.to);
  ops.push_back(other);
  const Shape& shape = program.values[static_cast<size_t>(op.outputs[0])].shape;
  ops.push_back({"Reshape", {{"shape", shape}}, {other.outputs[0]}, {op.outputs[0]}});
  const auto place = program.ops.erase(program.ops.begin() + static_cast<std::ptrdiff_t>(at));
  program.ops.insert(place, ops.begin(), ops.end());
}

Done move_in_other_dims(PlanSet& set, Random& random) {
  struct Place {
    Program* program;
    size_t op;
    Move move;
  };
  std::map<std::string, std::vector<Place>> by_op;
  for (Program& program : any_role(set, random).programs)
    for (size_t o = 0; o < program.ops.size(); ++o) {
      const auto move = move_of(program, program.ops[o]);
      if (!move || num_elements(move->to) > 4096) continue;
      const std::vector<int64_t> sources = sources_of(*move);
      const auto add = [&](std::optional<Move> other) {
        if (other && sources_of(*other) != sources)
          by_op[program.ops[o].op].push_back({&program, o, *std::move(other)});
      };
      for (const int64_t factor : {2, 3, 4}) add(in_more_dims(*move, factor));
      for (size_t up = 0; up < move->to.size(); ++up)
        for (size_t down = 0; down < move->to.size(); ++down)
          for (const int64_t factor : {2, 3, 4})
            if (up != down) add(in_other_dims(*move, up, down, factor));
    }
  if (by_op.empty()) return std::nullopt;
  const std::vector<Place>& places = std::next(by_op.begin(), static_cast<std::ptrdiff_t>(below(random, by_op.size())))->second;
  const Place& place = places[below(random, places.size())];
  std::string text = fmt::format("{}: {} {} as {}", place.program->label, place.move.op->op,
                                 to_string(move_of(*place.program, *place.move.op)->from[0]),
                                 to_string(place.move.from[0]));
  replace(*place.program, place.op, place.move);
  return text;
}

// Both operands of a product have more of what it sums over: their rows come twice, or with zeros in
// the middle of those of one and after those of the other.
Done make_longer(PlanSet& set, Random& random) {
  std::vector<std::pair<Program*, size_t>> products;
  for (RoleProgram& role : set.roles)
    for (Program& program : role.programs)
      for (size_t o = 0; o < program.ops.size(); ++o) {
        const ProgramOp& op = program.ops[o];
        if (op.op == "MatMul" && op.attrs.integer("trans_a") == 1 &&
            program.values[static_cast<size_t>(op.inputs[0])].shape.size() == 2)
          products.emplace_back(&program, o);
      }
  if (products.empty()) return std::nullopt;
  const auto& place = products[below(random, products.size())];
  Program* program = place.first;
  const size_t at = place.second;
  const std::vector<int32_t> inputs = program->ops[at].inputs;
  const int64_t rows = program->values[static_cast<size_t>(inputs[0])].shape[0];
  const bool pads = below(random, 2) == 0;
  std::vector<ProgramOp> ops;
  const auto add = [&](const char* op, Attrs attrs, int32_t from, const Shape& shape) {
    program->values.push_back({program->values[static_cast<size_t>(from)].dtype, shape});
    const auto made = static_cast<int32_t>(program->values.size()) - 1;
    ops.push_back({op, std::move(attrs), {from}, {made}});
    return made;
  };
  const auto in_shape = [&](int32_t from, const Shape& shape) {
    return add("Reshape", {{"shape", shape}}, from, shape);
  };
  for (size_t i = 0; i < 2; ++i) {
    const int64_t columns = program->values[static_cast<size_t>(inputs[i])].shape[1];
    const int64_t parts = pads && i == 0 && rows % 2 == 0 ? 2 : 1;
    Shape shape{parts, rows / parts, columns};
    int32_t longer = in_shape(inputs[i], shape);
    const std::vector<int64_t> before(3), after{0, rows / parts, 0};
    if (pads)
      shape[1] *= 2,
          longer = add("Pad", {{"before", before}, {"after", after}, {"value", 0.0}}, longer, shape);
    else
      shape[0] = 2, longer = add("Expand", {{"shape", shape}}, longer, shape);
    program->ops[at].inputs[i] = in_shape(longer, {2 * rows, columns});
  }
  program->ops.insert(program->ops.begin() + static_cast<std::ptrdiff_t>(at), ops.begin(),
                      ops.end());
  return fmt::format("{}: {} of {} rows", program->label, pads ? "zeros after" : "twice each", rows);
}

constexpr Mutation kViews[] = {{"move in other dims", move_in_other_dims}};
constexpr Mutation kLonger[] = {{"make longer", make_longer}};

}  // namespace

std::span<const Mutation> view_mutations() { return kViews; }
std::span<const Mutation> longer_mutations() { return kLonger; }

}  // namespace piper::mutation
