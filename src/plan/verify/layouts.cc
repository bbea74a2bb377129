// Rule layout: follows how each value is laid out over one mesh axis, instruction by instruction.
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
  // Returns whether the instruction communicates along this axis.
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
  // Adds, for each value of the program, the dims at which the axis cuts it, and those along which
  // all its elements are equal, so that it may be any block. Where ranks read different samples,
  // the plan for one device has their values apart, too, so such a cut has `ranks` = 0 (unknown).
  void add_cuts(Spot place, CutDims& cuts) const {
    for (size_t v = 0; after(place) && v < cuts.size(); ++v) {
      const Lies& lies = after(place)->values[v];
      const std::vector<Lies> readings = lies.readings();
      const bool is_cut = std::any_of(readings.begin(), readings.end(),
                                      [](const Lies&one) { return one.kind == Lies::kCut; }),
                 is_known = readings.size() == 1 && lies.run == 0;
      if (is_cut)
        cuts[v].push_back(
            {is_known ? lies.dims : ~uint32_t{0}, is_known && !has_samples_ ? ranks_ : 0});
      else if (lies.kind == Lies::kWhole && lies.dims != 0)
        cuts[v].push_back({lies.dims, 0});
    }
  }

  // Returns the axes that cut the buffer at the same stretches, in a reading for which `is` holds.
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
  // Returns the layout of the buffer, without axes in `outside` and `inside` that no longer cut it.
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
      add(place, "changes the layout of the state {}, to {}", shown(place, buffer, to),
          to_string(lies, shape(place, buffer)));
    }
  }

  // Gives integers without a number a new one: those that one instruction computes are equal on all
  // ranks of the axis, and may differ from those of all other instructions.
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
  // Returns the number of the integers that a collective makes of those with number `from`. Equal
  // integers that equal collectives move remain equal.
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
      case InstructionKind::kCopy:
        return put(place, one.args[1], held(place, one.args[0]));
      default:
        PIPER_CHECK(false, "{} is followed with all of its members", to_string(one.kind));
    }
  }

  // Returns the layout of a position in a group: it differs between ranks of this axis if the group
  // is along it, and is followed only where the group has no other axis.
  Lies position(Spot place, const Instruction& one) {
    if (!of_axis(axes(place, one))) return {Lies::kWhole};
    if (!is_alone(place, one)) return {Lies::kUnknown};
    return {.kind = Lies::kFirst, .outer = one.outer, .turn = {one.turn}, .mirrored = one.mirrored};
  }

  // Returns the layout of an input: blocks of samples if the range of samples moves with the axis,
  // else whole. A single sample number is where the rank's block of samples begins.
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
      each_number(lies, [&](int32_t& number) {  // negative: the program made these integers
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
        add(place, "receives from another rank of the axis what is not whole: {}",
            shown(place, to, lies));
        lies = {Lies::kUnknown};
      }
      const Shape &sent = shape(send, section_.at(send).args[a]), &own = shape(place, to);
      put(place, to, sent == own ? lies : reshaped(lies, sent, own));
    });
  }

  // Applies `make` to each reading and joins the results. Reports an error only if `make` accepts
  // none of the readings: that of the first.
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
  // Returns the layout of an argument that all members share; reports members that differ.
  Lies common(std::span<const Spot> members, size_t a) {
    const Lies from = given(members[0], section_.at(members[0]).args[a]);
    for (const Spot member : members) {
      const int32_t buffer = section_.at(member).args[a];
      const Lies other = held(member, buffer);
      if (other.fits(from) || other.kind == Lies::kUnknown || from.kind == Lies::kUnknown) continue;
      add(member, "brings {}, but other members bring it {}", shown(member, buffer, other),
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
      case InstructionKind::kAllToAll:
        return exchanged(place, one, a, from);
      default:
        PIPER_CHECK(false, "{} has no members", to_string(one.kind));
    }
  }
  // After a rotation, blocks and the parts in them come from ranks that are `turn` further away.
  Lies rotated(Spot place, const Instruction& one, Lies from) {
    if (!of_axis(axes(place, one))) {
      if (from.kind == Lies::kRows) from.index = moved_integers(place, one, 0, from.index);
      return from;
    }
    if (from.kind == Lies::kWhole) return from;
    if (from.kind != Lies::kCut || from.run != 0)
      return wrong(place, "cannot rotate", one.args[0], from);
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
      return keeps ? from
                   : wrong(place, "reduces along another axis, and must not,", one.args[a], from);
    }
    if (from.kind == (sums ? Lies::kTerms : Lies::kGreatest)) return {Lies::kWhole};
    return wrong(place, sums ? "cannot sum" : "cannot take the maximum of", one.args[a], from);
  }
  // Checks that the collective is along this axis only: blocks over several axes are not followed.
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
  // Returns the blocks that a collective joins, or into which it cuts, if these are blocks of a
  // dim.
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
  // Returns the shape in the middle of an all-to-all: after joining, before cutting.
  Shape together(Spot place, const Instruction& one, size_t a) const {
    Shape all = shape(place, one.args[a + 1]);
    all[static_cast<size_t>(one.to_dim)] *= members(place, one);
    return all;
  }
  // These return how one reading is laid out after a collective along other axes (see
  // piper::beside()).
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
  // Cuts routed rows along another axis. If each row is cut, the rows remain the same. If the rows
  // are, those of a block belong to the same block of the index.
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
  // Returns the layout of the rank's part of a value that must be `wanted`: whole, or terms of a
  // sum.
  Lies cut(Spot place, const Instruction& one, size_t a, const Lies& from, Lies::Kind wanted) {
    const int32_t part = one.args[a + 1];
    const uint32_t over = axes(place, one);
    if (!of_axis(over)) {
      if (one.dim < 0) return in_runs(place, one.args[a], from, over);
      const Lies made = cut_beside(place, one, a, from);
      return made.kind == Lies::kUnknown ? wrong(place, "cannot cut into blocks", one.args[a], from)
                                         : made;
    }
    if (from.kind != wanted)
      return wrong(place, wanted == Lies::kTerms ? "cannot sum" : "cannot cut into parts",
                   one.args[a], from);
    if (one.dim < 0) return {Lies::kCut, 0, over};
    if (!is_alone(place, one)) return {Lies::kUnknown};
    return own_blocks(place, part, one.dim, one.outer, one.mirrored);
  }
  // Returns the layout of new blocks along this axis. Axes that already cut the same dim at the
  // same stretches are outside of it, unless they are known to be inside.
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
      return wrong(place, "cannot cut into flat runs", buffer, from);
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
      return wrong(place, "cannot join as flat runs", one.args[a], from);
    if (of_axis(over)) return {Lies::kWhole};
    Lies made = from;
    made.dims = dims_of(shape(place, one.args[a + 1]), from.outer, false), made.run = 0;
    return made;
  }
  // Joins blocks, for an all-gather or for the first half of an all-to-all.
  Lies joined(Spot place, const Instruction& one, size_t a, const Lies& from) {
    const int32_t part = one.args[a];
    const Shape& own = shape(place, part);
    if (!of_axis(axes(place, one))) {
      const Lies made = joined_beside(place, one, a, from);
      return made.kind == Lies::kUnknown ? wrong(place, "cannot join as blocks", part, from) : made;
    }
    if (!is_alone(place, one)) return {Lies::kUnknown};
    const Lies wanted = blocks_of(own, static_cast<size_t>(one.dim), one.outer, one.mirrored);
    if (from.fits(wanted)) return {Lies::kWhole};
    add(place, "joins {}, as if it were {}", shown(place, part, from), to_string(wanted, own));
    return {Lies::kUnknown};
  }
  // Sends rows to the ranks that own what the index names (dispatch), or back to the blocks from
  // which they came (combine).
  Lies routed(Spot place, const Instruction& one, const Lies& from) {
    const bool sends = one.kind == InstructionKind::kDispatch;
    const Lies index = given(place, one.args[2]).readings()[0];
    const int64_t rows = num_elements(shape(place, one.args[2]));
    if (!of_axis(axes(place, one))) return routed_beside(place, one, from, index);
    const int64_t blocks =
        elements_of(shape(place, one.args[0]), one.dim) * (one.mirrored ? -one.outer : one.outer);
    const bool alike = blocks_.try_emplace(index.index, blocks).first->second == blocks;
    if (index.kind != Lies::kWhole || index.index == 0 ||
        !alike)  // rows return to the blocks they left
      return wrong(place, "cannot route rows by", one.args[2], index);
    const Lies all{Lies::kRows, 0, 0, rows, 0, 0, {}, index.index, one.owned};
    if (!sends && !from.fits(all)) return wrong(place, "cannot return rows of", one.args[0], from);
    if (!is_alone(place, one)) return {Lies::kUnknown};
    if (!sends) return own_blocks(place, one.args[1], one.dim, one.outer, one.mirrored);
    return joined(place, one, 0, from).kind == Lies::kUnknown ? Lies{Lies::kUnknown} : all;
  }
  // Routes rows along another axis. Over this one, rows and index are both whole, or both cut into
  // the same blocks, or the index is whole and each row is cut.
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
    return wrong(place, "routes by an index with another layout", one.args[0], from);
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
  bool has_samples_ = false;             // ranks of the axis read different samples
  bool quiet_ = false;                   // while readings are tried, errors are not reported
  std::vector<std::vector<Lies>> held_;  // by cell and buffer
  Mail<Lies> sent_;
  Integers integers_;
  std::map<int32_t, int64_t> blocks_;  // by the number of an index: the stretches of the rows' dim
  // By program: layouts of arguments that were met, and the layouts of all values with these.
  std::map<const Program*, std::deque<std::pair<std::vector<Lies>, LiesAfter>>> known_;
  std::vector<std::vector<const LiesAfter*>> after_;  // by cell and instruction
};

}  // namespace

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
      for (const LayoutCheck& check : checks) check.add_cuts(place, made);
      cuts = &*found.all.insert(std::move(made)).first;
    }
    found.cuts[place.cell][place.index] = cuts;
  }
  return found;
}

}  // namespace piper
