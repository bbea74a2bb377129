#include "layouts.h"

#include <map>

#include "mail.h"

namespace piper {
namespace {

uint32_t axes_of(const Group& group) {
  uint32_t axes = 0;
  for (const int32_t axis : group.axes) axes |= uint32_t{1} << axis;
  return axes;
}

}  // namespace

std::string to_string(const Lies& lies, const Shape& shape) {
  constexpr const char* kNames[] = {
      "unset",          "unknown",        "whole",      "cut",
      "terms of a sum", "greatest apart", "own number", "whole and terms of sums"};
  if (lies.kind == Lies::kCut && lies.run != 0) return "cut into runs";
  std::string text = kNames[lies.kind];
  if (lies.kind != Lies::kCut) return text;
  for (size_t d = 0; d < shape.size() && d < 32; ++d) {
    const int64_t before = elements_of(shape, d);
    if (!(lies.dims >> d & 1) || before == 0) continue;
    text += fmt::format(" at dim {}", d);
    return lies.outer == before ? text : fmt::format("{}, outer {}", text, lies.outer / before);
  }
  return text;
}

Lies blocks_of(const Shape& shape, size_t dim, int64_t outer) {
  return {Lies::kCut, uint32_t{1} << dim, 0, elements_of(shape, dim) * outer};
}

uint32_t dims_of(const Shape& shape, int64_t outer, bool several) {
  uint32_t all = 0, blocks = 0;
  int64_t before = 1;
  for (size_t d = 0; d < shape.size() && d < 32 && before > 0; before *= shape[d++]) {
    if (outer % before != 0 || shape[d] <= 0) continue;
    const int64_t stretches = outer / before;
    if (stretches > shape[d] || shape[d] % stretches != 0) continue;
    all |= uint32_t{1} << d;
    if (stretches < shape[d] || stretches == 1) blocks |= uint32_t{1} << d;
  }
  return several && blocks != 0 ? blocks : all;
}

Lies reshaped(const Lies& lies, const Shape& from, const Shape& to) {
  if (lies.kind != Lies::kCut || lies.run != 0 || from == to) return lies;
  Lies made = lies;
  bool several = false;
  for (size_t d = 0; d < from.size() && d < 32; ++d)
    if (lies.dims >> d & 1) several = several || elements_of(from, d + 1) > lies.outer;
  made.dims = dims_of(to, lies.outer, several);
  return made;
}

Lies mixed(int64_t outer, std::vector<bool> terms) {
  if (std::find(terms.begin(), terms.end(), false) == terms.end()) return {Lies::kTerms};
  if (std::find(terms.begin(), terms.end(), true) == terms.end()) return {Lies::kWhole};
  return {Lies::kMixed, 0, 0, outer, std::move(terms)};
}

namespace {

Lies run_of_mixed(const Lies& lies, int64_t all, int64_t first, int64_t count) {
  const auto pieces = static_cast<int64_t>(lies.terms.size());
  const int64_t stretch = all / lies.outer, piece = stretch / pieces;
  if (piece == 0 || stretch % pieces != 0) return {Lies::kUnknown};
  if (first % stretch == 0 && count % stretch == 0) return mixed(count / stretch, lies.terms);
  first %= stretch;
  const auto begin = lies.terms.begin() + first / piece;
  if (first / piece == (first + count - 1) / piece) return {*begin ? Lies::kTerms : Lies::kWhole};
  if (first % piece != 0 || count % piece != 0 || first + count > stretch) return {Lies::kUnknown};
  return mixed(1, std::vector<bool>(begin, begin + count / piece));
}

}  // namespace

Lies run_of(const Lies& lies, int64_t all, int64_t first, int64_t count, const Shape& to) {
  if (lies.kind == Lies::kMixed) return run_of_mixed(lies, all, first, count);
  if (lies.kind != Lies::kCut) return lies;
  const int64_t block = lies.outer > 0 ? all / lies.outer : 0;
  if (lies.run != 0 || block == 0 || first % block != 0 || count % block != 0)
    return {Lies::kUnknown};
  Lies made = lies;
  made.outer = count / block;
  made.dims = dims_of(to, made.outer, false);
  return made;
}

uint32_t find_followed_axes(const PlanSet& set) {
  uint32_t axes = 0;
  for (const RoleProgram& role : set.roles) {
    for (const Tensor& tensor : role.tensors)
      for (const TensorCut& cut : tensor.cuts) axes |= uint32_t{1} << cut.axis;
    for (const auto* list : {&role.prologue, &role.body, &role.epilogue})
      for (const Instruction& one : *list)
        if (one.group >= 0 && (one.dim >= 0 || one.reduction == Reduction::kMax))
          axes |= axes_of(role.groups[one.group]);
  }
  for (size_t axis = 0; axis < set.roles[0].mesh.size(); ++axis)
    if (set.roles[0].mesh[axis].second == 1) axes &= ~(uint32_t{1} << axis);
  return axes;
}

namespace {

// How what a state keeps lies over the axis. Cuts apply in order, each to what is left; one that
// cuts a dim again leaves fewer stretches, or smaller blocks, of those before it.
Lies kept_of(const RoleProgram& role, const Tensor& tensor, int32_t axis) {
  Shape left = tensor.whole.empty() ? tensor.type.shape : tensor.whole;
  const TensorCut* own = nullptr;
  int64_t outer = 1;
  for (const TensorCut& cut : tensor.cuts) {
    const auto dim = static_cast<size_t>(cut.dim);
    const int64_t size = role.mesh[cut.axis].second;
    if (own && own->dim == cut.dim && cut.outer % outer != 0) {
      if (outer % (cut.outer * size) != 0) return {Lies::kUnknown};
      outer /= size;
    }
    left[dim] /= size;
    if (cut.axis == axis) own = &cut, outer = cut.outer;
  }
  Lies lies = own ? blocks_of(left, static_cast<size_t>(own->dim), outer) : Lies{Lies::kWhole};
  if (tensor.part_of < 0) return lies;
  const uint32_t run = axes_of(role.groups[tensor.part_of]);
  if (!own && (run >> axis & 1)) return {Lies::kCut, 0, run};
  if (own) lies.run = run, lies.dims = 0;
  return lies;
}

// What of a cut along one axis a collective along another leaves, which has `members` blocks of
// each of `outer` stretches of `dim`. `joins`: it puts them together, from `shape`.
Lies beside(const Lies& lies, const Shape& shape, int32_t of_dim, int64_t outer, int64_t members,
            bool joins) {
  if (lies.kind != Lies::kCut) return lies;
  if (lies.run != 0 || lies.dims == 0) return {Lies::kUnknown};
  const auto own = static_cast<size_t>(std::countr_zero(lies.dims)),
             dim = static_cast<size_t>(of_dim);
  const int64_t before = elements_of(shape, own), stretches = before > 0 ? lies.outer / before : 0;
  Lies made = lies;
  made.dims = uint32_t{1} << own;
  if (own < dim || (own == dim && stretches > 0 && outer % stretches == 0)) return made;
  if (own == dim && stretches % (outer * (joins ? 1 : members)) != 0) return {Lies::kUnknown};
  made.outer = joins ? lies.outer * members : lies.outer / members;
  return made;
}

class LayoutCheck {
 public:
  LayoutCheck(const Model& model, const Section& section, int32_t axis, Findings& findings)
      : model_(model),
        section_(section),
        axis_(axis),
        ranks_(model.mesh[static_cast<size_t>(axis)].second),
        findings_(findings),
        sent_(section) {}

  void run() {
    if (!all_alike()) return;
    for (const Cell& cell : model_.cells) {
      auto& held = held_.emplace_back(cell.facts->buffers.size());
      for (const int32_t b : cell.facts->kept) {
        const Tensor& tensor = cell.role->tensor(b);
        held[b] = kept_of(*cell.role, tensor, axis_);
        if (held[b].kind != Lies::kUnknown) continue;
        findings_.add("layout", "'{}' is cut along several axes in a way that is not followed",
                      quote_control(tensor.name));
      }
    }
    for (const Spot place : section_.order) {
      if (is_collective(section_.step(place).kind))
        collective(members_of(place));
      else
        step(place, section_.at(place));
      for (const Spot member : members_of(place))
        if (section_.ends_step(member)) check_reports(member.cell);
    }
  }

 private:
  bool of_axis(uint32_t axes) const { return axes >> axis_ & 1; }
  const RoleProgram& role(Spot place) const { return *model_.cells[place.cell].role; }
  Lies& held(Spot place, int32_t buffer) { return held_[place.cell][buffer]; }
  const Shape& shape(Spot place, int32_t buffer) const {
    return role(place).tensor(buffer).type.shape;
  }
  std::vector<Spot> members_of(Spot place) const {
    const int32_t joint = section_.joint[place.cell][place.index];
    return joint < 0 ? std::vector<Spot>{place} : section_.joints[joint];
  }
  std::string shown(Spot place, int32_t buffer, const Lies& lies) const {
    return fmt::format("'{}', {}", quote_control(role(place).name(buffer)),
                       to_string(lies, shape(place, buffer)));
  }
  template <class... Args>
  void add(Spot place, fmt::format_string<Args...> text, Args&&... args) {
    findings_.add("layout", "over '{}', {} {}",
                  quote_control(model_.mesh[static_cast<size_t>(axis_)].first),
                  name_of(model_, section_, place), fmt::format(text, std::forward<Args>(args)...));
  }

  // What all ranks of the axis have alike is so because all do the same.
  bool all_alike() {
    int64_t stride = 1;
    for (size_t a = model_.mesh.size(); a-- > static_cast<size_t>(axis_) + 1;)
      stride *= model_.mesh[a].second;
    for (int64_t rank = 0; rank < static_cast<int64_t>(model_.cell_of_rank.size()); ++rank) {
      if (rank / stride % ranks_ == 0) continue;
      const int32_t own = model_.cell_of_rank[rank], before = model_.cell_of_rank[rank - stride];
      if (model_.cells[own].role == model_.cells[before].role) continue;
      findings_.add("layout", "{} and {} stand beside each other along '{}', but run other plans",
                    model_.who(before), model_.who(own),
                    quote_control(model_.mesh[static_cast<size_t>(axis_)].first));
      return false;
    }
    return true;
  }

  void put(Spot place, int32_t buffer, const Lies& lies) {
    Lies& to = held(place, buffer);
    if (role(place).tensor(buffer).kind != BufferKind::kState) {
      to = lies;
    } else if (lies.kind != Lies::kUnknown && to.kind != Lies::kUnknown && !lies.fits(to)) {
      add(place, "leaves the state {}, which is {}", shown(place, buffer, to),
          to_string(lies, shape(place, buffer)));
    }
  }

  void step(Spot place, const Instruction& one) {
    switch (one.kind) {
      case InstructionKind::kCompute:
        return compute(place, one);
      case InstructionKind::kInput:
        return put(place, one.args[0], read(place, one));
      case InstructionKind::kPosition:
        return put(place, one.args[0], position(place, one));
      case InstructionKind::kSend:
        for (const int32_t arg : one.args) sent_.post(place, held(place, arg));
        return;
      case InstructionKind::kRecv:
        return receive(place, one);
      case InstructionKind::kOwnPart:
        for (size_t a = 0; a + 1 < one.args.size(); a += 2)
          put(place, one.args[a + 1], cut(place, one, a, held(place, one.args[a]), Lies::kWhole));
        return;
      default:  // copies
        for (size_t a = 0; a + 1 < one.args.size(); a += 2)
          put(place, one.args[a + 1], held(place, one.args[a]));
    }
  }

  // Of a group along the axis alone; of another it is the same for all.
  Lies position(Spot place, const Instruction& one) const {
    const uint32_t axes = axes_of(role(place).groups[one.group]);
    if ((axes >> axis_ & 1) == 0) return {Lies::kWhole};
    if (axes != uint32_t{1} << axis_) return {Lies::kUnknown};
    return {Lies::kFirst, 0, 0, one.outer};
  }

  // Samples of its own where its range moves with the axis; of the numbers of samples one alone is
  // where the own part of something begins.
  Lies read(Spot place, const Instruction& one) const {
    const int64_t stride = one.samples.stride[static_cast<size_t>(axis_)];
    if (stride == 0) return {Lies::kWhole};
    const auto& inputs = role(place).inputs;
    const auto input = std::find_if(inputs.begin(), inputs.end(),
                                    [&](const DataInput& each) { return each.name == one.input; });
    if (input == inputs.end() && one.samples.count == 1) return {Lies::kFirst, 0, 0, stride};
    const int32_t dim = input == inputs.end() ? 0 : input->batch_dim;
    if (dim < 0) return {Lies::kWhole};
    return blocks_of(shape(place, one.args[0]), static_cast<size_t>(dim), 1);
  }

  void compute(Spot place, const Instruction& one) {
    const Program& program = role(place).programs[one.program];
    std::vector<Lies> args;
    for (const int32_t arg : one.args) args.push_back(held(place, arg));
    auto& known = known_[&program];
    auto after = std::find_if(known.begin(), known.end(),
                              [&](const auto& each) { return each.first == args; });
    if (after == known.end()) {
      known.emplace_back(args, follow_layouts(program, args, ranks_));
      after = std::prev(known.end());
    }
    const LiesAfter& made = after->second;
    if (!made.wrong.empty()) add(place, "cannot do {}", made.wrong);
    for (size_t a = 0; a < one.args.size(); ++a)
      if (program.arg_written[a])
        put(place, one.args[a], made.wrong.empty() ? made.args[a] : Lies{Lies::kUnknown});
  }

  void receive(Spot place, const Instruction& one) {
    const Spot send = section_.partner[place.cell][place.index];
    const auto axis = static_cast<size_t>(axis_);
    const bool apart =
        model_.cells[send.cell].coordinates[axis] != model_.cells[place.cell].coordinates[axis] ||
        one.peer[axis] >= 0;
    sent_.fetch(send, [&](size_t a, Lies lies) {
      const int32_t to = one.args[a];
      if (apart && lies.kind != Lies::kWhole && lies.kind != Lies::kUnknown) {
        add(place, "takes from another rank along it {}", shown(place, to, lies));
        lies = {Lies::kUnknown};
      }
      put(place, to, reshaped(lies, shape(send, section_.at(send).args[a]), shape(place, to)));
    });
  }

  // ---- Collectives ----
  void collective(const std::vector<Spot>& members) {
    const Instruction& one = section_.at(members[0]);
    const bool pairs = takes_pairs(one.kind);
    for (size_t a = 0; a < one.args.size(); a += pairs ? 2 : 1) {
      const Lies from = common(members, a);
      for (const Spot member : members) {
        const Instruction& own = section_.at(member);
        put(member, own.args[pairs ? a + 1 : a], made_of(member, own, a, from));
      }
    }
  }
  // How all members have it.
  Lies common(const std::vector<Spot>& members, size_t a) {
    const Lies from = held(members[0], section_.at(members[0]).args[a]);
    for (const Spot member : members) {
      const int32_t buffer = section_.at(member).args[a];
      const Lies other = held(member, buffer);
      if (other.fits(from) || other.kind == Lies::kUnknown || from.kind == Lies::kUnknown) continue;
      add(member, "joins with {}, what others have {}", shown(member, buffer, other),
          to_string(from, shape(member, buffer)));
      return {Lies::kUnknown};
    }
    return from;
  }
  Lies made_of(Spot place, const Instruction& one, size_t a, const Lies& from) {
    if (from.kind == Lies::kUnset || from.kind == Lies::kUnknown) return {Lies::kUnknown};
    switch (one.kind) {
      case InstructionKind::kAllReduce:
        return reduced(place, one, a, from);
      case InstructionKind::kReduceScatter:
        return cut(place, one, a, from, Lies::kTerms);
      case InstructionKind::kAllGather:
        return gathered(place, one, a, from);
      case InstructionKind::kBroadcast:
        if (!of_axis(axes(place, one)) || from.kind == Lies::kWhole) return from;
        return wrong(place, "gives to others", one.args[a], from);
      default:
        return exchanged(place, one, a, from);
    }
  }
  uint32_t axes(Spot place, const Instruction& one) const {
    return axes_of(role(place).groups[one.group]);
  }
  Lies wrong(Spot place, const char* does, int32_t buffer, const Lies& lies) {
    add(place, "{} {}", does, shown(place, buffer, lies));
    return {Lies::kUnknown};
  }
  Lies reduced(Spot place, const Instruction& one, size_t a, const Lies& from) {
    const bool sums = one.reduction == Reduction::kSum;
    if (!of_axis(axes(place, one))) {
      const bool keeps = from.kind == Lies::kWhole || from.kind == Lies::kCut ||
                         (sums && from.kind == Lies::kMixed) ||
                         from.kind == (sums ? Lies::kTerms : Lies::kGreatest);
      return keeps ? from : wrong(place, "reduces along another axis", one.args[a], from);
    }
    if (from.kind == (sums ? Lies::kTerms : Lies::kGreatest)) return {Lies::kWhole};
    return wrong(place, sums ? "adds up" : "takes the greatest of", one.args[a], from);
  }
  // Blocks or runs are along one axis, or where the numbers of several do not matter, runs.
  bool is_alone(Spot place, const Instruction& one) {
    const uint32_t all = axes(place, one);
    int others = 0;
    for (size_t axis = 0; axis < model_.mesh.size(); ++axis)
      others +=
          (all >> axis & 1) && static_cast<int32_t>(axis) != axis_ && model_.mesh[axis].second > 1;
    if (others == 0) return true;
    add(place, "has blocks along several axes, which is not followed");
    return false;
  }
  int64_t members(Spot place, const Instruction& one) const {
    int64_t count = 1;
    for (const int32_t axis : role(place).groups[one.group].axes)
      count *= model_.mesh[static_cast<size_t>(axis)].second;
    return count;
  }
  // The own part of what is whole, or of a sum: `wanted`.
  Lies cut(Spot place, const Instruction& one, size_t a, const Lies& from, Lies::Kind wanted) {
    if (from.kind == Lies::kUnset || from.kind == Lies::kUnknown) return {Lies::kUnknown};
    const int32_t part = one.args[a + 1];
    const uint32_t over = axes(place, one);
    if (!of_axis(over)) {
      if (one.dim < 0) return in_runs(place, one.args[a], from, over);
      const Lies made =
          beside(from, shape(place, one.args[a]), one.dim, one.outer, members(place, one), false);
      return made.kind == Lies::kUnknown ? wrong(place, "takes blocks of", one.args[a], from)
                                         : made;
    }
    if (from.kind != wanted)
      return wrong(place, wanted == Lies::kTerms ? "adds up" : "takes the own part of", one.args[a],
                   from);
    if (one.dim < 0) return {Lies::kCut, 0, over};
    if (!is_alone(place, one)) return {Lies::kUnknown};
    return blocks_of(shape(place, part), static_cast<size_t>(one.dim), one.outer);
  }
  Lies in_runs(Spot place, int32_t buffer, const Lies& from, uint32_t over) {
    if (from.kind == Lies::kMixed || from.run != 0)
      return wrong(place, "takes a run of", buffer, from);
    if (from.kind != Lies::kCut) return from;
    return {Lies::kCut, 0, over, from.outer};
  }
  Lies gathered(Spot place, const Instruction& one, size_t a, const Lies& from) {
    const int32_t part = one.args[a], whole = one.args[a + 1];
    const uint32_t over = axes(place, one);
    if (one.dim < 0) {
      if (!of_axis(over) && from.kind == Lies::kMixed)
        return mixed(from.outer * members(place, one), from.terms);
      if (!of_axis(over) && from.kind != Lies::kCut) return from;
      if (from.kind != Lies::kCut || from.run != over)
        return wrong(place, "puts runs together of", part, from);
      if (of_axis(over)) return {Lies::kWhole};
      return {Lies::kCut, dims_of(shape(place, whole), from.outer, false), 0, from.outer};
    }
    return joined(place, one, part, from);
  }
  // Blocks put together, by a collective that does no more, or gives each its block of another dim.
  Lies joined(Spot place, const Instruction& one, int32_t part, const Lies& from) {
    const Shape& own = shape(place, part);
    if (!of_axis(axes(place, one))) {
      const Lies made = beside(from, own, one.dim, one.outer, members(place, one), true);
      return made.kind == Lies::kUnknown ? wrong(place, "puts blocks together of", part, from)
                                         : made;
    }
    if (!is_alone(place, one)) return {Lies::kUnknown};
    const Lies wanted = blocks_of(own, static_cast<size_t>(one.dim), one.outer);
    if (from.fits(wanted)) return {Lies::kWhole};
    add(place, "puts together {}, as if it were {}", shown(place, part, from),
        to_string(wanted, own));
    return {Lies::kUnknown};
  }
  Lies exchanged(Spot place, const Instruction& one, size_t a, const Lies& from) {
    const Lies whole = joined(place, one, one.args[a], from);
    if (whole.kind == Lies::kUnknown) return whole;
    const Shape& to = shape(place, one.args[a + 1]);
    if (of_axis(axes(place, one)))
      return blocks_of(to, static_cast<size_t>(one.to_dim), one.to_outer);
    Shape together = to;
    together[static_cast<size_t>(one.to_dim)] *= members(place, one);
    return beside(whole, together, one.to_dim, one.to_outer, members(place, one), false);
  }

  void check_reports(int32_t cell) {
    const RoleProgram& own = *model_.cells[cell].role;
    for (const Report& report : own.reports) {
      const Lies& lies = held_[cell][report.buffer];
      if (lies.kind == Lies::kWhole || lies.kind == Lies::kUnset || lies.kind == Lies::kUnknown)
        continue;
      findings_.add("layout", "over '{}', {} reports '{}', which is {}",
                    quote_control(model_.mesh[static_cast<size_t>(axis_)].first), model_.who(cell),
                    quote_control(report.name),
                    to_string(lies, own.tensor(report.buffer).type.shape));
    }
  }

  const Model& model_;
  const Section& section_;
  const int32_t axis_;
  const int64_t ranks_;
  Findings& findings_;
  std::vector<std::vector<Lies>> held_;  // by cell and buffer
  Mail<Lies> sent_;
  // By program: arguments that it was given, and what it makes of them.
  std::map<const Program*, std::vector<std::pair<std::vector<Lies>, LiesAfter>>> known_;
};

}  // namespace

void check_layouts(const Model& model, const Section& section, Findings& findings) {
  for (size_t axis = 0; axis < model.mesh.size(); ++axis)
    if (model.followed >> axis & 1)
      LayoutCheck(model, section, static_cast<int32_t>(axis), findings).run();
}

}  // namespace piper
