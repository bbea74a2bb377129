// Rule layout: follows how each value is laid out over one mesh axis, instruction by instruction.
#include <algorithm>
#include <utility>

#include "layouts_moved.h"

namespace piper {

void LayoutCheck::begin() {
  for (const Cell& cell : model_.cells) {
    after_.emplace_back(section_.steps[held_.size()].size());
    auto& held = held_.emplace_back(cell.facts->buffers.size());
    for (const int32_t b : cell.facts->kept) {
      const Tensor& tensor = cell.role->tensor(b);
      held[b] = kept_of(*cell.role, tensor, axis_);
      if (held[b].kind == Lies::kWhole) held[b].dims = cell.facts->buffers[b].same;
      if (held[b].kind != Lies::kUnknown) continue;
      findings_.add("layout", "'{}' is cut along several axes in a way that is not followed",
                    quote_control(tensor.name));
    }
  }
}

void LayoutCheck::visit(Spot place) {
  follow(place);
  for (const Spot member : section_.members(place))
    if (section_.ends_step(member)) check_reports(member.cell);
}

namespace {

// Returns the dims that a packed one may be: those before it have one element.
uint32_t packed_dims(const Shape& shape) {
  size_t dims = 1;
  while (dims < shape.size() && dims < 31 && shape[dims] == 1) ++dims;
  return (uint32_t{1} << dims) - 1;
}

}  // namespace

void LayoutCheck::add_cuts(Spot place, CutDims& cuts) const {
  const Program& program = role(place).programs[at(place).program];
  for (size_t v = 0; after(place) && v < cuts.size(); ++v) {
    const Lies& lies = after(place)->values[v];
    const std::vector<Lies> readings = lies.readings();
    const bool is_cut = std::ranges::count(readings, Lies::kCut, &Lies::kind) > 0;
    const bool is_known = readings.size() == 1 && lies.run == 0;
    if (std::ranges::any_of(readings, [](const Lies& one) { return !one.turn.of.empty(); }))
      cuts[v].push_back({0, CutDim::kPartial});
    if (is_cut)
      cuts[v].push_back(
          {is_known ? lies.dims : ~uint32_t{0}, is_known && !has_samples_ ? ranks_ : 0});
    else if (const uint32_t same = lies.dims & ~after(place)->counted[v];
             lies.kind == Lies::kWhole && same != 0)
      cuts[v].push_back({same, 0});
    else if (lies.kind == Lies::kPlaces)
      cuts[v].push_back({0, CutDim::kPlaces});
    else if (lies.packed != 0)
      cuts[v].push_back({packed_dims(program.values[v].shape), CutDim::kPacked});
  }
}

Lies LayoutCheck::given(Spot place, int32_t buffer) const {
  return of_each(held_[place.cell][buffer], [&](Lies lies) {
    if ((lies.outside | lies.inside) == 0) return lies;
    const uint32_t there = beside_them(place, buffer, lies, [](const Lies&) { return true; });
    lies.outside &= there, lies.inside &= there;
    return lies;
  });
}

int64_t LayoutCheck::members(Spot place) const {
  int64_t count = 1;
  for (const int32_t axis : role(place).groups[at(place).group].axes)
    count *= model_.mesh[static_cast<size_t>(axis)].second;
  return count;
}

int64_t LayoutCheck::further(int64_t rank, uint32_t axes, int64_t by) const {
  int64_t members = 1, position = 0, made = 0;
  const auto each_axis = [&](const auto& visit) {  // the last one first
    int64_t stride = 1;
    for (size_t axis = model_.mesh.size(); axis-- > 0; stride *= model_.mesh[axis].second) {
      const int64_t ranks = model_.mesh[axis].second;
      visit(axes >> axis & 1, rank / stride % ranks, ranks, stride);
    }
  };
  each_axis([&](bool is_one, int64_t at, int64_t ranks, int64_t) {
    if (is_one) position += at * members, members *= ranks;
  });
  position = (position + by) % members;
  each_axis([&](bool is_one, int64_t at, int64_t ranks, int64_t stride) {
    made += (is_one ? position % ranks : at) * stride;
    if (is_one) position /= ranks;
  });
  return made;
}

void LayoutCheck::check_rings(Spot place) {
  for (size_t v = 0; after(place) && v < after(place)->values.size(); ++v)
    for (const Lies& one : after(place)->values[v].readings())
      for (const LayoutCheck& other : all_)
        if ((one.turn.rings >> other.axis_ & 1) && other.after(place) &&
            std::ranges::none_of(other.after(place)->values[v].readings(), [](const Lies& its) {
              return its.kind == Lies::kCut || its.kind == Lies::kTerms ||
                     its.kind == Lies::kGreatest || its.kind == Lies::kUnknown ||
                     its.kind == Lies::kUnset;
            }))
          return add(place,
                     "has blocks that went through a ring over '{}', which does not cut them",
                     quote_control(model_.mesh[static_cast<size_t>(other.axis_)].first));
}

bool LayoutCheck::is_alone(Spot place) {
  if (members(place) == ranks_) return true;
  add(place, "has blocks along several axes, which is not followed");
  return false;
}

void LayoutCheck::put(Spot place, int32_t buffer, Lies lies) {
  Lies& to = held(place, buffer);
  name_integers(place, buffer, lies);
  if (role(place).tensor(buffer).kind != BufferKind::kState) {
    to = lies;
  } else if (lies.kind != Lies::kUnknown && to.kind != Lies::kUnknown && !lies.fits(to)) {
    add(place, "changes the layout of the state {}, to {}", shown(place, buffer, to),
        to_string(lies, shape(place, buffer)));
  }
}

void LayoutCheck::name_integers(Spot place, int32_t buffer, Lies& lies) {
  const bool is_known = lies.kind == Lies::kWhole || lies.kind == Lies::kCut;
  if (is_known && lies.index == 0 && !info(role(place).tensor(buffer).type.dtype).is_float)
    lies.index = number_of(place, {buffer});
}

int32_t LayoutCheck::number_of(Spot place, const std::vector<int64_t>& what) {
  std::vector<int64_t> of = model_.cells[place.cell].coordinates;
  of[static_cast<size_t>(axis_)] = 0;
  of.push_back(place.index);
  of.insert(of.end(), what.begin(), what.end());
  return integers_.number_of(std::move(of));
}

Lies LayoutCheck::position(Spot place) {
  const Instruction& one = at(place);
  if (!of_axis(group_axes(place))) return {Lies::kWhole};
  if (!is_alone(place)) return {Lies::kUnknown};
  return {.kind = Lies::kFirst, .outer = one.outer, .turn = {one.turn}, .mirrored = one.mirrored};
}

Lies LayoutCheck::input(Spot place) {
  const Instruction& one = at(place);
  const int64_t stride = one.samples.stride[static_cast<size_t>(axis_)];
  if (stride == 0) return {Lies::kWhole};
  has_samples_ = true;
  const auto& inputs = role(place).inputs;
  const auto input = std::find_if(inputs.begin(), inputs.end(),
                                  [&](const DataInput& each) { return each.name == one.input; });
  const int32_t dim = input == inputs.end() ? 0 : input->batch_dim;
  if (dim < 0) return {Lies::kWhole};
  Lies made = blocks_of(shape(place, one.args[0]), static_cast<size_t>(dim), 1);
  if (input == inputs.end()) made.add_reading({Lies::kApart});
  if (input == inputs.end() && one.samples.count == 1)
    made.add_reading({Lies::kFirst, 0, 0, stride});
  return made;
}

void LayoutCheck::compute(Spot place) {
  const Instruction& one = at(place);
  const Program& program = role(place).programs[one.program];
  std::vector<Lies> args;
  args.reserve(one.args.size());
  // Integers are numbered anew in the order of the arguments, so that all uses of the program
  // with the same layouts share one entry of known_.
  std::vector<int32_t> numbers{0};
  for (size_t a = 0; a < one.args.size(); ++a) {
    const Shape &own = shape(place, one.args[a]), &taken = program.values[a].shape;
    const Lies lies = given(place, one.args[a]);
    args.push_back(own == taken ? lies : reshaped(lies, own, taken));
    each_number(args.back(), [&](int32_t& number) {
      const auto met = std::find(numbers.begin(), numbers.end(), number);
      if (met == numbers.end())
        numbers.push_back(number), number = static_cast<int32_t>(numbers.size()) - 1;
      else
        number = static_cast<int32_t>(met - numbers.begin());
    });
  }
  auto& known = known_[{equal_.first_of(program), has_samples_}];
  auto after = std::find_if(known.begin(), known.end(),
                            [&](const auto& each) { return each.first == args; });
  if (after == known.end()) {
    known.emplace_back(args, follow_layouts(program, args, {axis_, ranks_, has_samples_}));
    after = std::prev(known.end());
  }
  const LiesAfter& made = after->second;
  after_[place.cell][place.index] = &made;
  if (!made.wrong.empty()) add(place, "cannot do {}", made.wrong);
  for (size_t a = 0; a < one.args.size(); ++a) {
    if (!program.arg_written[a]) continue;
    Lies lies = made.wrong.empty() ? made.values[a] : Lies{Lies::kUnknown};
    each_number(lies, [&](int32_t& number) {  // negative: the program made these integers
      number = number < 0 ? number_of(place, {number}) : numbers[static_cast<size_t>(number)];
    });
    const Shape &own = shape(place, one.args[a]), &made_in = program.values[a].shape;
    put(place, one.args[a], own == made_in ? std::move(lies) : reshaped(lies, made_in, own));
  }
}

Lies LayoutCheck::arrived(Spot place, Spot send, size_t a, Lies&& lies) {
  const auto axis = static_cast<size_t>(axis_);
  const bool apart =
      model_.cells[send.cell].coordinates[axis] != model_.cells[place.cell].coordinates[axis] ||
      at(place).peer[axis] >= 0;
  const int32_t to = at(place).args[a];
  if (apart && lies.fits({Lies::kWhole})) lies = {Lies::kWhole};
  if (apart && lies.kind != Lies::kWhole && lies.kind != Lies::kUnknown) {
    add(place, "receives from another rank of the axis what is not whole: {}",
        shown(place, to, lies));
    lies = {Lies::kUnknown};
  }
  const Shape &sent = shape(send, at(send).args[a]), &own = shape(place, to);
  return sent == own ? std::move(lies) : reshaped(lies, sent, own);
}

const Program* EqualPrograms::first_of(const Program& program) {
  const Program*& first = first_[&program];
  if (first != nullptr) return first;
  uint64_t hash = program.values.size();
  const auto add = [&](uint64_t number) { hash = (hash ^ number) * 0x9e3779b97f4a7c15; };
  for (const ProgramOp& op : program.ops) {
    add(std::hash<std::string>()(op.op));
    for (const int32_t input : op.inputs) add(static_cast<uint64_t>(input));
  }
  const auto is_equal = [&](const Program& other) {
    return program.values == other.values && program.num_args == other.num_args &&
           program.ops == other.ops && program.literals == other.literals &&
           program.arg_written == other.arg_written && program.arg_read == other.arg_read;
  };
  const auto [from, to] = known_.equal_range(hash);
  const auto same = std::find_if(from, to, [&](const auto& one) { return is_equal(*one.second); });
  return first = same != to ? same->second : known_.emplace(hash, &program)->second;
}

// ---- Collectives --------------------------------------------------------------------------------

void LayoutCheck::collective(std::span<const Spot> members) {
  for_each_moved(at(members[0]), [&](size_t read, size_t written) {
    const Lies from = joined(members, read);
    for (const Spot member : members)
      put(member, at(member).args[written], moved(member, read, from));
  });
}

// Tries each reading and joins the results. Reports an error only if no reading can be moved: that
// of the first.
Lies LayoutCheck::moved(Spot member, size_t a, const Lies& from) {
  MovedLayout move(*this, member, a);
  quiet_ = !from.also.empty();
  Lies made = of_each(from, [&](const Lies& reading) { return move.made_of(reading); });
  if (std::exchange(quiet_, false) && made.kind == Lies::kUnknown) move.made_of(from.readings()[0]);
  // Sums of equal elements are equal, and so are those of a block of equal ones.
  const Instruction& one = at(member);
  const bool keeps = one.kind == InstructionKind::kAllReduce ||
                     (one.kind == InstructionKind::kOwnPart && one.dim >= 0);
  const uint32_t same = keeps && made.kind == Lies::kWhole ? made.dims : 0;
  made = renewed(std::move(made));
  made.dims |= same;
  if (made.kind == Lies::kWhole || made.kind == Lies::kCut)
    made.index = move.integers_of(from.index);
  return made;
}

Lies LayoutCheck::joined(std::span<const Spot> members, size_t a) {
  const Lies from = given(members[0], at(members[0]).args[a]);
  for (const Spot member : members) {
    const int32_t buffer = at(member).args[a];
    const Lies other = held(member, buffer);
    if (other.fits(from) || other.kind == Lies::kUnknown || from.kind == Lies::kUnknown) continue;
    add(member, "brings {}, but other members bring it {}", shown(member, buffer, other),
        to_string(from, shape(member, buffer)));
    return {Lies::kUnknown};
  }
  return from;
}

void LayoutCheck::check_reports(int32_t cell) {
  const RoleProgram& own = *model_.cells[cell].role;
  for (const Report& report : own.reports) {
    const Lies& lies = held_[cell][report.buffer];
    if (lies.fits({Lies::kWhole}) || lies.kind == Lies::kUnset || lies.kind == Lies::kUnknown)
      continue;
    findings_.add("layout", "over '{}', {} reports '{}', which is {}",
                  quote_control(model_.mesh[static_cast<size_t>(axis_)].first), model_.who(cell),
                  quote_control(report.name),
                  to_string(lies, own.tensor(report.buffer).type.shape));
  }
}

// Follows the instructions in order, each over all axes. The axes along which an instruction
// communicates come last, as they read the layouts over the others.
LayoutsFound check_layouts(const Model& model, const Section& section, Findings& findings) {
  std::vector<LayoutCheck> checks;
  for (size_t axis = 0; axis < model.mesh.size(); ++axis) {
    if (!(model.followed >> axis & 1)) continue;
    // A value is known to be whole only because all ranks of the axis run the same instructions.
    if (model.alike_axis[axis])
      checks.emplace_back(model, section, static_cast<int32_t>(axis), findings, checks);
    else
      findings.add("layout", "ranks with blocks along '{}' run different plans",
                   quote_control(model.mesh[axis].first));
  }
  for (LayoutCheck& check : checks) check.begin();
  for (const Spot place : section.order)
    for (const bool moves : {false, true})
      for (LayoutCheck& check : checks)
        if (check.moves(place) == moves) check.visit(place);
  LayoutsFound found;
  for (const auto& steps : section.steps) found.cuts.emplace_back(steps.size());
  std::map<std::vector<const LiesAfter*>, const CutDims*> known;
  for (const Spot place : section.order) {
    if (checks.empty() || section.step(place).kind != InstructionKind::kCompute) continue;
    std::vector<const LiesAfter*> after;
    for (const LayoutCheck& check : checks) after.push_back(check.after(place));
    const CutDims*& cuts = known[after];
    if (!cuts) {
      CutDims made(
          model.cells[place.cell].role->programs[section.step(place).program].values.size());
      for (LayoutCheck& check : checks) check.add_cuts(place, made), check.check_rings(place);
      cuts = &*found.all.insert(std::move(made)).first;
    }
    found.cuts[place.cell][place.index] = cuts;
  }
  return found;
}

}  // namespace piper
