// Follows how each value lies over one mesh axis, instruction by instruction.
#include "layouts.h"

#include <bit>
#include <deque>

#include "layouts_integers.h"
#include "mail.h"

namespace piper {
namespace {

class LayoutCheck {
 public:
  LayoutCheck(const Model& model, const Section& section, int32_t axis, Findings& findings,
              const std::vector<LayoutCheck>& all)
      : model_(model),
        section_(section),
        axis_(axis),
        ranks_(model.mesh[static_cast<size_t>(axis)].second),
        findings_(findings),
        all_(all) {}

  void begin() {
    for (const Cell& cell : model_.cells) {
      after_.emplace_back(section_.steps[held_.size()].size());
      auto& held = held_.emplace_back(cell.facts->buffers.size());
      for (const int32_t b : cell.facts->kept) {
        const Tensor& tensor = cell.role->tensor(b);
        held[b] = kept_of(*cell.role, tensor, axis_);
        if (held[b].kind != Lies::kUnknown) continue;
        findings_.add("layout", "'{}' is cut along several axes in a way that is not followed",
                      quote_control(tensor.name));
      }
    }
  }
  void visit(Spot place) {
    if (is_collective(section_.step(place).kind))
      collective(section_.members(place));
    else
      step(place, section_.at(place));
    for (const Spot member : section_.members(place))
      if (section_.ends_step(member)) check_reports(member.cell);
  }
  // Whether it is along this axis.
  bool moves(Spot place) const {
    const Instruction& one = section_.at(place);
    return one.group >= 0 && of_axis(axes(place, one));
  }

  const RoleProgram& role(Spot place) const { return *model_.cells[place.cell].role; }
  Lies& held(Spot place, int32_t buffer) { return held_[place.cell][buffer]; }
  const Shape& shape(Spot place, int32_t buffer) const {
    return role(place).tensor(buffer).type.shape;
  }
  std::string shown(Spot place, int32_t buffer, const Lies& lies) const {
    return fmt::format("'{}', {}", quote_control(role(place).name(buffer)),
                       to_string(lies, shape(place, buffer)));
  }
  template <class... Args>
  void add(Spot place, fmt::format_string<Args...> text, Args&&... args) {
    if (!quiet_)
      findings_.add("layout", "over '{}', {} {}",
                    quote_control(model_.mesh[static_cast<size_t>(axis_)].first),
                    name_of(model_, section_, place),
                    fmt::format(text, std::forward<Args>(args)...));
  }

  const LiesAfter* after(Spot place) const { return after_[place.cell][place.index]; }
  // Adds along which dims each value of a program is cut over the axis, or repeats its elements and
  // so may be any block. Ranks with samples of their own are apart on one device, too.
  void add_cuts(Spot place, CutDims& cuts) const {
    for (size_t v = 0; after(place) && v < cuts.size(); ++v) {
      const Lies& lies = after(place)->values[v];
      if (lies.kind == Lies::kWhole && lies.dims != 0) cuts[v].push_back({lies.dims, 0});
      if (lies.kind != Lies::kCut) continue;
      const bool known = lies.also.empty() && lies.run == 0;
      cuts[v].push_back({known ? lies.dims : ~uint32_t{0}, known && !has_samples_ ? ranks_ : 0});
    }
  }

  // Axes at the same stretches.
  template <class Is>
  uint32_t beside_them(Spot place, int32_t buffer, const Lies& lies, const Is& is) const {
    uint32_t axes = 0;
    for (const LayoutCheck& other : all_)
      for (const Lies& reading : other.held_[place.cell][buffer].readings())
        if (other.axis_ != axis_ && reading.kind == Lies::kCut && reading.run == lies.run &&
            reading.outer == lies.outer && is(reading))
          axes |= uint32_t{1} << other.axis_;
    return axes;
  }
  // Without axes that are not there any more.
  Lies given(Spot place, int32_t buffer) const {
    return of_each(held_[place.cell][buffer], [&](Lies lies) {
      if ((lies.outside | lies.inside) == 0) return lies;
      const uint32_t there = beside_them(place, buffer, lies, [](const Lies&) { return true; });
      lies.outside &= there, lies.inside &= there;
      return lies;
    });
  }

 private:
  bool of_axis(uint32_t axes) const { return axes >> axis_ & 1; }
  void put(Spot place, int32_t buffer, Lies lies) {
    Lies& to = held(place, buffer);
    name_integers(place, buffer, lies);
    if (role(place).tensor(buffer).kind != BufferKind::kState) {
      to = lies;
    } else if (lies.kind != Lies::kUnknown && to.kind != Lies::kUnknown && !lies.fits(to)) {
      add(place, "leaves the state {}, which is {}", shown(place, buffer, to),
          to_string(lies, shape(place, buffer)));
    }
  }

  // Integers that a step makes are others than those of all other steps, but the same on all ranks
  // of the axis.
  void name_integers(Spot place, int32_t buffer, Lies& lies) {
    const bool is_known = lies.kind == Lies::kWhole || lies.kind == Lies::kCut;
    if (is_known && lies.index == 0 && !info(role(place).tensor(buffer).type.dtype).is_float)
      lies.index = number_of(place, {buffer});
  }
  int32_t number_of(Spot place, const std::vector<int64_t>& what) {
    std::vector<int64_t> of = model_.cells[place.cell].coordinates;
    of[static_cast<size_t>(axis_)] = 0;
    of.push_back(place.index);
    of.insert(of.end(), what.begin(), what.end());
    return integers_.number_of(std::move(of));
  }
  // What a message makes of the same integers in the same way is the same.
  int32_t moved_integers(Spot place, const Instruction& one, size_t a, int32_t from) {
    if (from == 0) return 0;
    const auto joins = blocks_joined(place, one, a), cuts = blocks_cut(place, one, a);
    std::optional<int32_t> made = from;
    if (joins) made = integers_.whole_of(from, *joins);
    if (cuts && made) made = integers_.part_of(*made, *cuts);
    if (made && (joins || cuts)) return *made;
    std::vector<int64_t> what{from, static_cast<int64_t>(one.kind), axes(place, one), one.turn};
    for (const auto& blocks : {joins, cuts})
      what.insert(what.end(), {blocks ? blocks->stretches : 0, blocks && blocks->mirrored});
    return number_of({place.cell, -1}, what);
  }
  void put_moved(Spot place, size_t a, int32_t buffer, Lies lies, const Lies& from) {
    const Instruction& one = section_.at(place);
    const bool adds = one.kind == InstructionKind::kAllReduce;
    const uint32_t same = adds && lies.kind == Lies::kWhole ? lies.dims : 0;
    lies = renewed(std::move(lies));
    lies.dims |= same;
    if (lies.kind == Lies::kWhole || lies.kind == Lies::kCut)
      lies.index = moved_integers(place, one, a, from.index);
    put(place, buffer, std::move(lies));
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
        return collective(section_.members(place));
      default:  // copies
        for (size_t a = 0; a + 1 < one.args.size(); a += 2)
          put(place, one.args[a + 1], held(place, one.args[a]));
    }
  }

  // Of a group along the axis alone; of another it is the same for all.
  Lies position(Spot place, const Instruction& one) {
    if (!of_axis(axes(place, one))) return {Lies::kWhole};
    if (!is_alone(place, one)) return {Lies::kUnknown};
    return {.kind = Lies::kFirst, .outer = one.outer, .turn = {one.turn}, .mirrored = one.mirrored};
  }

  // Samples of its own where its range moves with the axis; of the numbers of samples one alone is
  // where the own part of something begins.
  Lies read(Spot place, const Instruction& one) {
    const int64_t stride = one.samples.stride[static_cast<size_t>(axis_)];
    if (stride == 0) return {Lies::kWhole};
    has_samples_ = true;
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
    std::vector<int32_t> numbers{0};  // of integers, as the program meets them
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
    auto& known = known_[&program];
    auto after = std::find_if(known.begin(), known.end(),
                              [&](const auto& each) { return each.first == args; });
    if (after == known.end()) {
      known.emplace_back(args, follow_layouts(program, args, axis_, ranks_));
      after = std::prev(known.end());
    }
    const LiesAfter& made = after->second;
    after_[place.cell][place.index] = &made;
    if (!made.wrong.empty()) add(place, "cannot do {}", made.wrong);
    for (size_t a = 0; a < one.args.size(); ++a) {
      if (!program.arg_written[a]) continue;
      Lies lies = made.wrong.empty() ? made.values[a] : Lies{Lies::kUnknown};
      each_number(lies, [&](int32_t& number) {  // of its own, or that it was given
        number = number < 0 ? number_of(place, {number}) : numbers[static_cast<size_t>(number)];
      });
      const Shape &own = shape(place, one.args[a]), &made_in = program.values[a].shape;
      put(place, one.args[a], own == made_in ? std::move(lies) : reshaped(lies, made_in, own));
    }
  }

  void receive(Spot place, const Instruction& one) {
    const Spot send = section_.partner[place.cell][place.index];
    const auto axis = static_cast<size_t>(axis_);
    const bool apart =
        model_.cells[send.cell].coordinates[axis] != model_.cells[place.cell].coordinates[axis] ||
        one.peer[axis] >= 0;
    sent_.fetch(send, [&](size_t a, Lies lies) {
      const int32_t to = one.args[a];
      if (apart && lies.fits({Lies::kWhole})) lies = {Lies::kWhole};
      if (apart && lies.kind != Lies::kWhole && lies.kind != Lies::kUnknown) {
        add(place, "takes from another rank along it {}", shown(place, to, lies));
        lies = {Lies::kUnknown};
      }
      const Shape &sent = shape(send, section_.at(send).args[a]), &own = shape(place, to);
      put(place, to, sent == own ? lies : reshaped(lies, sent, own));
    });
  }

  // What `make` makes of the readings that it can take; it says what is wrong where it can take
  // none.
  template <class Make>
  Lies by_readings(const Lies& from, const Make& make) {
    quiet_ = !from.also.empty();
    Lies made = of_each(from, make);
    if (std::exchange(quiet_, false) && made.kind == Lies::kUnknown) make(from.readings()[0]);
    return made;
  }

  // ---- Collectives ----
  void collective(std::span<const Spot> members) {
    const Instruction& one = section_.at(members[0]);
    const bool pairs = takes_pairs(one.kind);
    for (size_t a = 0; a + pairs < one.args.size(); a += pairs ? 2 : 1) {
      const Lies from = common(members, a);
      for (const Spot member : members) {
        const Instruction& own = section_.at(member);
        const auto made = [&](const Lies& reading) { return made_of(member, own, a, reading); };
        put_moved(member, a, own.args[pairs ? a + 1 : a], by_readings(from, made), from);
      }
    }
  }
  // How all members have it.
  Lies common(std::span<const Spot> members, size_t a) {
    const Lies from = given(members[0], section_.at(members[0]).args[a]);
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
      case InstructionKind::kOwnPart:
        return cut(place, one, a, from, Lies::kWhole);
      case InstructionKind::kAllGather:
        return gathered(place, one, a, from);
      case InstructionKind::kRotate:
        return rotated(place, one, from);
      case InstructionKind::kDispatch:
      case InstructionKind::kCombine:
        return routed(place, one, from);
      default:
        return exchanged(place, one, a, from);
    }
  }
  // Blocks, and the parts in them, are those of ranks further away.
  Lies rotated(Spot place, const Instruction& one, Lies from) {
    if (!of_axis(axes(place, one))) {
      if (from.kind == Lies::kRows) from.index = moved_integers(place, one, 0, from.index);
      return from;
    }
    if (from.kind == Lies::kWhole) return from;
    if (from.kind != Lies::kCut || from.run != 0) return wrong(place, "rotates", one.args[0], from);
    if (!is_alone(place, one)) return {Lies::kUnknown};
    from.turn.before = (from.turn.before + one.turn) % ranks_;
    const auto of = static_cast<std::ptrdiff_t>(from.turn.of.size());
    if (of > 0)
      std::rotate(from.turn.of.begin(), from.turn.of.end() - one.turn, from.turn.of.end());
    return from;
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
                         from.kind == Lies::kRows ||
                         from.kind == (sums ? Lies::kTerms : Lies::kGreatest);
      return keeps ? from : wrong(place, "reduces along another axis", one.args[a], from);
    }
    if (from.kind == (sums ? Lies::kTerms : Lies::kGreatest)) return {Lies::kWhole};
    return wrong(place, sums ? "adds up" : "takes the greatest of", one.args[a], from);
  }
  // Blocks or runs are along one axis, or where the numbers of several do not matter, runs.
  bool is_alone(Spot place, const Instruction& one) {
    if (members(place, one) == ranks_) return true;
    add(place, "has blocks along several axes, which is not followed");
    return false;
  }
  int64_t members(Spot place, const Instruction& one) const {
    int64_t count = 1;
    for (const int32_t axis : role(place).groups[one.group].axes)
      count *= model_.mesh[static_cast<size_t>(axis)].second;
    return count;
  }
  // What a message puts together, and what it gives each its block of: blocks of dims.
  std::optional<Blocks> blocks_joined(Spot place, const Instruction& one, size_t a) const {
    const bool joins = one.kind == InstructionKind::kAllGather ||
                       one.kind == InstructionKind::kAllToAll ||
                       one.kind == InstructionKind::kDispatch;
    if (!joins || one.dim < 0) return std::nullopt;
    return blocks_at(place, one, shape(place, one.args[a]), one.dim, one.outer, one.mirrored);
  }
  std::optional<Blocks> blocks_cut(Spot place, const Instruction& one, size_t a) const {
    if (one.kind == InstructionKind::kAllToAll)
      return blocks_at(place, one, together(place, one, a), one.to_dim, one.to_outer,
                       one.to_mirrored);
    const bool cuts = one.kind == InstructionKind::kReduceScatter ||
                      one.kind == InstructionKind::kOwnPart ||
                      one.kind == InstructionKind::kCombine;
    if (!cuts || one.dim < 0) return std::nullopt;
    return blocks_at(place, one, shape(place, one.args[a]), one.dim, one.outer, one.mirrored);
  }
  Blocks blocks_at(Spot place, const Instruction& one, const Shape& all, int32_t dim, int64_t outer,
                   bool mirrored) const {
    return {axes(place, one), members(place, one),
            elements_of(all, static_cast<size_t>(dim)) * outer, mirrored};
  }
  // Of an exchange, between its two halves.
  Shape together(Spot place, const Instruction& one, size_t a) const {
    Shape all = shape(place, one.args[a + 1]);
    all[static_cast<size_t>(one.to_dim)] *= members(place, one);
    return all;
  }
  // What a message along other axes leaves, of one reading: see piper::beside().
  Lies joined_beside(Spot place, const Instruction& one, size_t a, const Lies& from) {
    if (from.kind == Lies::kRows) return rows_joined(place, one, a, from);
    return beside(from, shape(place, one.args[a]), one.dim, one.outer, axes(place, one),
                  members(place, one), true);
  }
  Lies cut_beside(Spot place, const Instruction& one, size_t a, const Lies& from) {
    if (from.kind == Lies::kRows) return rows_cut(place, one, a, from);
    if (one.kind == InstructionKind::kAllToAll)
      return beside(from, together(place, one, a), one.to_dim, one.to_outer, axes(place, one),
                    members(place, one), false);
    return beside(from, shape(place, one.args[a]), one.dim, one.outer, axes(place, one),
                  members(place, one), false);
  }
  // Rows by an index: blocks of what each row has, or of the rows, which are those by the own block
  // of the index.
  Lies rows_cut(Spot place, const Instruction& one, size_t a, Lies rows) {
    const Blocks blocks = *blocks_cut(place, one, a);
    if (blocks.stretches % rows.outer == 0) return rows;
    const std::optional<int32_t> part = integers_.part_of(rows.index, blocks);
    if (!part || rows.outer % (blocks.stretches * blocks.members) != 0) return {Lies::kUnknown};
    rows.index = *part;
    rows.outer /= blocks.members;
    return rows;
  }
  Lies rows_joined(Spot place, const Instruction& one, size_t a, Lies rows) {
    const Blocks blocks = *blocks_joined(place, one, a);
    const bool known = integers_.are_blocks(rows.index, blocks.axes);
    if (!known && blocks.stretches % rows.outer == 0) return rows;
    const std::optional<int32_t> whole =
        rows.outer % blocks.stretches == 0 ? integers_.whole_of(rows.index, blocks) : std::nullopt;
    if (!whole) return {Lies::kUnknown};
    rows.index = *whole;
    rows.outer *= blocks.members;
    return rows;
  }
  // The own part of what is whole, or of a sum: `wanted`.
  Lies cut(Spot place, const Instruction& one, size_t a, const Lies& from, Lies::Kind wanted) {
    const int32_t part = one.args[a + 1];
    const uint32_t over = axes(place, one);
    if (!of_axis(over)) {
      if (one.dim < 0) return in_runs(place, one.args[a], from, over);
      const Lies made = cut_beside(place, one, a, from);
      return made.kind == Lies::kUnknown ? wrong(place, "takes blocks of", one.args[a], from)
                                         : made;
    }
    if (from.kind != wanted)
      return wrong(place, wanted == Lies::kTerms ? "adds up" : "takes the own part of", one.args[a],
                   from);
    if (one.dim < 0) return {Lies::kCut, 0, over};
    if (!is_alone(place, one)) return {Lies::kUnknown};
    return own_blocks(place, part, one.dim, one.outer, one.mirrored);
  }
  // Of what cuts the same dim at the same stretches, and is not known to be inside, these are
  // blocks; of what may be either that is not said.
  Lies own_blocks(Spot place, int32_t buffer, int32_t dim, int64_t outer, bool mirrored) const {
    Lies made = blocks_of(shape(place, buffer), static_cast<size_t>(dim), outer, mirrored);
    const auto is_inside = [&](const Lies& other) { return (other.outside >> axis_ & 1) != 0; };
    const auto are_cut = [&](const Lies& other) { return (other.dims & made.dims) != 0; };
    made.outside =
        beside_them(place, buffer, made, are_cut) & ~beside_them(place, buffer, made, is_inside);
    return made;
  }
  Lies in_runs(Spot place, int32_t buffer, const Lies& from, uint32_t over) {
    if (from.run != 0 || from.turn != Lies::Turn() || from.kind == Lies::kRows)
      return wrong(place, "takes a run of", buffer, from);
    Lies made = from;
    if (from.kind == Lies::kCut) made.dims = 0, made.run = over;
    const Shape& all = shape(place, buffer);
    for (size_t d = 0; from.kind == Lies::kWhole && d < all.size() && d < 32; ++d)
      if (from.dims >> d & 1) made.add_reading({Lies::kCut, 0, over, elements_of(all, d)});
    return made;
  }
  Lies gathered(Spot place, const Instruction& one, size_t a, const Lies& from) {
    const uint32_t over = axes(place, one);
    if (one.dim >= 0) return joined(place, one, a, from);
    if (!of_axis(over) && from.kind != Lies::kCut) return from;
    if (from.kind != Lies::kCut || from.run != over)
      return wrong(place, "puts runs together of", one.args[a], from);
    if (of_axis(over)) return {Lies::kWhole};
    Lies made = from;
    made.dims = dims_of(shape(place, one.args[a + 1]), from.outer, false), made.run = 0;
    return made;
  }
  // Blocks put together, by a collective that does no more, or gives each its block of another dim.
  Lies joined(Spot place, const Instruction& one, size_t a, const Lies& from) {
    const int32_t part = one.args[a];
    const Shape& own = shape(place, part);
    if (!of_axis(axes(place, one))) {
      const Lies made = joined_beside(place, one, a, from);
      return made.kind == Lies::kUnknown ? wrong(place, "puts blocks together of", part, from)
                                         : made;
    }
    if (!is_alone(place, one)) return {Lies::kUnknown};
    const Lies wanted = blocks_of(own, static_cast<size_t>(one.dim), one.outer, one.mirrored);
    if (from.fits(wanted)) return {Lies::kWhole};
    add(place, "puts together {}, as if it were {}", shown(place, part, from),
        to_string(wanted, own));
    return {Lies::kUnknown};
  }
  // Rows to the ranks that own what the index names, or from there to the blocks where they belong.
  Lies routed(Spot place, const Instruction& one, const Lies& from) {
    const bool sends = one.kind == InstructionKind::kDispatch;
    const Lies index = given(place, one.args[2]).readings()[0];
    const int64_t rows = num_elements(shape(place, one.args[2]));
    if (!of_axis(axes(place, one))) return routed_beside(place, one, from, index);
    const int64_t blocks =
        elements_of(shape(place, one.args[0]), one.dim) * (one.mirrored ? -one.outer : one.outer);
    const bool alike = blocks_.try_emplace(index.index, blocks).first->second == blocks;
    if (index.kind != Lies::kWhole || index.index == 0 || !alike)  // go and come in the same blocks
      return wrong(place, "sends rows by", one.args[2], index);
    const Lies all{Lies::kRows, 0, 0, rows, 0, 0, {}, index.index, one.owned};
    if (!sends && !from.fits(all)) return wrong(place, "gives rows back of", one.args[0], from);
    if (!is_alone(place, one)) return {Lies::kUnknown};
    if (!sends) return own_blocks(place, one.args[1], one.dim, one.outer, one.mirrored);
    return joined(place, one, 0, from).kind == Lies::kUnknown ? Lies{Lies::kUnknown} : all;
  }
  // Along another axis rows and their index are the same for all, or of the same blocks, or blocks
  // of what a row has.
  Lies routed_beside(Spot place, const Instruction& one, const Lies& from, const Lies& index) {
    const bool sends = one.kind == InstructionKind::kDispatch;
    const int64_t rows = num_elements(shape(place, one.args[2])) / members(place, one);
    const Lies made = sends ? joined_beside(place, one, 0, from) : cut_beside(place, one, 0, from);
    const Lies& blocks = sends ? from : made;
    bool alike = index.kind == Lies::kWhole;
    if (blocks.kind == Lies::kCut) {
      const int64_t elements = num_elements(shape(place, one.args[sends ? 0 : 1]));
      const bool inside = blocks.outer % rows == 0 && elements / blocks.outer > 0;
      alike = index.kind == Lies::kWhole ? inside : index.kind == Lies::kCut;
    }
    if (made.kind != Lies::kUnknown && alike) return made;
    return wrong(place, "sends, by what is otherwise, rows of", one.args[0], from);
  }
  Lies exchanged(Spot place, const Instruction& one, size_t a, const Lies& from) {
    const Lies whole = joined(place, one, a, from);
    if (whole.kind == Lies::kUnknown) return whole;
    if (of_axis(axes(place, one)))
      return own_blocks(place, one.args[a + 1], one.to_dim, one.to_outer, one.to_mirrored);
    return of_each(whole, [&](const Lies& reading) { return cut_beside(place, one, a, reading); });
  }

  void check_reports(int32_t cell) {
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

  const Model& model_;
  const Section& section_;
  const int32_t axis_;
  const int64_t ranks_;
  Findings& findings_;
  const std::vector<LayoutCheck>& all_;  // by axis, this one among them
  bool has_samples_ = false;             // of its own, of those that are read
  bool quiet_ = false;                   // while readings are tried
  std::vector<std::vector<Lies>> held_;  // by cell and buffer
  Mail<Lies> sent_;
  Integers integers_;
  std::map<int32_t, int64_t> blocks_;  // by integers that are an index, of its rows
  // By program: arguments that it was given, and what it makes of them.
  std::map<const Program*, std::deque<std::pair<std::vector<Lies>, LiesAfter>>> known_;
  std::vector<std::vector<const LiesAfter*>> after_;  // by cell and instruction
};

}  // namespace

// Step by step over all axes; those that an instruction is not along first.
LayoutsFound check_layouts(const Model& model, const Section& section, Findings& findings) {
  std::vector<LayoutCheck> checks;
  for (size_t axis = 0; axis < model.mesh.size(); ++axis) {
    if (!(model.followed >> axis & 1)) continue;
    // What all ranks of the axis have alike is so because all do the same.
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
      for (const LayoutCheck& check : checks) check.add_cuts(place, made);
      cuts = &*found.all.insert(std::move(made)).first;
    }
    found.cuts[place.cell][place.index] = cuts;
  }
  return found;
}

}  // namespace piper
