// Rule layout over one mesh axis: how each buffer lies after each instruction. Private to the
// verify room.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>

#include "layouts.h"
#include "layouts_integers.h"
#include "walk.h"

namespace piper {

// Finds, of each program, the first one that does the same: roles repeat those of others, under
// labels of their own.
class EqualPrograms {
 public:
  const Program* first_of(const Program& program);

 private:
  std::map<const Program*, const Program*> first_;
  std::unordered_multimap<uint64_t, const Program*> known_;  // by a hash
};

class LayoutCheck : public BufferWalk<Lies> {
 public:
  LayoutCheck(const Model& model, const Section& section, int32_t axis, Findings& findings,
              const std::vector<LayoutCheck>& all)
      : BufferWalk(section),
        model_(model),
        axis_(axis),
        ranks_(model.mesh[static_cast<size_t>(axis)].second),
        findings_(findings),
        all_(all) {}

  void begin();
  void visit(Spot place);
  // Returns whether the instruction communicates along this axis.
  bool moves(Spot place) const { return at(place).group >= 0 && of_axis(group_axes(place)); }

  const LiesAfter* after(Spot place) const { return after_[place.cell][place.index]; }
  // Adds, for each value of the program, the dims at which the axis cuts it, and those along which
  // all its elements are equal, so that it may be any block. Where ranks read different samples,
  // the plan for one device has their values apart, too, so such a cut has `ranks` = 0 (unknown).
  void add_cuts(Spot place, CutDims& cuts) const;
  // Checks that axes whose rings blocks have gone through cut these, or that these are terms of a
  // sum over the axis, which only blocks in their places make: only then do these axes prove that
  // each block counts once (see Lies::Turn).
  void check_rings(Spot place);

  // ---- For collectives (layouts_moved.h) ----
  int32_t axis() const { return axis_; }
  int64_t ranks() const { return ranks_; }
  const Instruction& at(Spot place) const { return section_.at(place); }
  uint32_t group_axes(Spot place) const { return axes_of(role(place).groups[at(place).group]); }
  int64_t members(Spot place) const;
  // Returns the rank `by` positions further along the axes, which are counted together. Ranks and
  // distances are row-major in the mesh.
  int64_t further(int64_t rank, uint32_t axes, int64_t by) const;
  // Checks that the collective is along this axis only: blocks over several axes are not followed.
  bool is_alone(Spot place);
  const Shape& shape(Spot place, int32_t buffer) const {
    return role(place).tensor(buffer).type.shape;
  }
  // Returns the layout of the buffer, without axes in `outside` and `inside` that no longer cut it.
  Lies given(Spot place, int32_t buffer) const;
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
  Integers& integers() { return integers_; }
  int32_t number_of(Spot place, const std::vector<int64_t>& what);
  // Returns the stretches of the dim whose rows the index with this number routes: these, if it
  // has routed none before.
  int64_t stretches_of(int32_t index, int64_t stretches) {
    return stretches_.try_emplace(index, stretches).first->second;
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

 private:
  bool of_axis(uint32_t axes) const { return axes >> axis_ & 1; }
  const RoleProgram& role(Spot place) const { return *model_.cells[place.cell].role; }
  Lies& held(Spot place, int32_t buffer) { return held_[place.cell][buffer]; }

  Lies get(Spot place, int32_t buffer) override { return held(place, buffer); }
  void put(Spot place, int32_t buffer, Lies lies) override;
  // Gives integers without a number a new one: those that one instruction computes are equal on all
  // ranks of the axis, and may differ from those of all other instructions.
  void name_integers(Spot place, int32_t buffer, Lies& lies);
  // Returns the layout of a position in a group: it differs between ranks of this axis if the group
  // is along it, and is followed only where the group has no other axis.
  Lies position(Spot place) override;
  // Returns the layout of an input: blocks of samples if the range of samples moves with the axis,
  // else whole. Numbers of samples also differ between ranks, and a single one is where the rank's
  // block of samples begins.
  Lies input(Spot place) override;
  void compute(Spot place) override;
  Lies arrived(Spot place, Spot send, size_t a, Lies&& lies) override;
  void collective(std::span<const Spot> members) override;
  // Returns the layout of an argument that all members share; reports members that differ.
  Lies joined(std::span<const Spot> members, size_t a);
  // Returns what one member makes of its arg.
  Lies moved(Spot member, size_t a, const Lies& from);

  void check_reports(int32_t cell);

  const Model& model_;
  const int32_t axis_;
  const int64_t ranks_;
  Findings& findings_;
  const std::vector<LayoutCheck>& all_;  // by axis, this one among them
  bool has_samples_ = false;             // ranks of the axis read different samples
  bool quiet_ = false;                   // while readings are tried, errors are not reported
  std::vector<std::vector<Lies>> held_;  // by cell and buffer
  Integers integers_;
  std::map<int32_t, int64_t> stretches_;  // see stretches_of()
  EqualPrograms equal_;
  // Keeps, by program and whether samples are known to differ, the layouts of arguments that were
  // met, and those of all values with these.
  std::map<std::pair<const Program*, bool>, std::deque<std::pair<std::vector<Lies>, LiesAfter>>>
      known_;
  std::vector<std::vector<const LiesAfter*>> after_;  // by cell and instruction
};

}  // namespace piper
