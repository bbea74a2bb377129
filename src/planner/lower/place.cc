// Places buffers by their lifetimes, and adds the waits that shared memory needs.
#include "place.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "at.h"
#include "piper/base/memory.h"
#include "piper/plan/access.h"

namespace piper {
namespace {

void sort_unique(std::vector<int32_t>& waits) {
  std::sort(waits.begin(), waits.end());
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
}

// Both sides of an overlap are alive at once: what begins or ends inside lives all through it.
void stretch(std::vector<Block>& blocks, const std::vector<Overlap>& overlaps) {
  if (overlaps.empty()) return;
  std::vector<const Overlap*> there(at(overlaps.back().end));  // by position
  for (const Overlap& o : overlaps) std::fill(there.begin() + o.first, there.begin() + o.end, &o);
  const auto find = [&](int64_t position) {
    const bool known = position >= 0 && position < static_cast<int64_t>(there.size());
    return known ? there[at(position)] : nullptr;
  };
  for (Block& block : blocks) {
    if (const Overlap* overlap = find(block.first)) block.first = overlap->first;
    if (const Overlap* overlap = find(block.last)) block.last = overlap->end - 1;
  }
}

bool is_on_one_stream(const RoleProgram& role) {
  return role.streams.size() == 1 ||
         std::all_of(role.body.begin(), role.body.end(),
                     [&](const Instruction& one) { return one.stream == role.body[0].stream; });
}

// Memory that another stream has used is taken over when that stream has done with it: a wait for
// the last access there, and after a send for what tells that it has been received.
class MemoryWaits {
 public:
  MemoryWaits(RoleProgram& role, const std::vector<int64_t>& held_until)
      : role_(role),
        held_until_(held_until),
        streams_(role.streams.size()),
        last_(role.buffers.size() * streams_, -1),
        bytes_(role.buffers.size()),
        owns_(role.buffers.size()) {}

  void find_bytes() {
    for (size_t b = 0; b < owns_.size(); ++b) {
      const Buffer& buffer = role_.buffers[b];
      const Tensor& tensor = role_.tensor(buffer);
      owns_[b] = tensor.kind != BufferKind::kStep;
      // The host's memory is taken to be after the device's.
      const int64_t begin = buffer.offset + (tensor.host ? kHost : 0);
      bytes_[b] = {begin, begin + align_up(tensor.type.bytes())};
    }
  }

  void run() {
    if (is_on_one_stream(role_)) return;
    find_bytes();
    for (size_t i = 0; i < role_.body.size(); ++i) {
      Instruction& one = role_.body[i];
      for (int32_t arg : one.args) {
        if (!owns_[at(arg)]) take(arg, one.stream, one.waits);
        note(arg, one.stream, static_cast<int32_t>(i));
        if (one.kind != InstructionKind::kSend) continue;
        const int64_t known = held_until_[i] + 1;
        if (known < static_cast<int64_t>(role_.body.size()))
          note(arg, role_.body[at(known)].stream, static_cast<int32_t>(known));
      }
      sort_unique(one.waits);
    }
  }

 private:
  static constexpr int64_t kHost = int64_t{1} << 60;

  int32_t& last_on(int32_t buffer, int32_t stream) {
    return last_[at(buffer) * streams_ + at(stream)];
  }
  // What is known of a send's end may come after later uses.
  void note(int32_t buffer, int32_t stream, int32_t access) {
    last_on(buffer, stream) = std::max(last_on(buffer, stream), access);
  }
  void take(int32_t buffer, int32_t stream, std::vector<int32_t>& waits) {
    const auto [begin, end] = bytes_[at(buffer)];
    owns_[at(buffer)] = true;
    const auto leave = [&, stream](int32_t old) {
      owns_[at(old)] = false;
      for (int32_t on = 0; on < static_cast<int32_t>(streams_); ++on)
        if (on != stream && last_on(old, on) >= 0) waits.push_back(last_on(old, on));
    };
    auto it = owner_.lower_bound(begin);
    if (it != owner_.end() && it->first == begin && it->second.first == end)  // most are like that
      return leave(std::exchange(it->second.second, buffer));
    if (it != owner_.begin() && std::prev(it)->second.first > begin) --it;
    while (it != owner_.end() && it->first < end) {
      const auto [first, range] = *it;
      leave(range.second);
      it = owner_.erase(it);
      if (first < begin) owner_.emplace_hint(it, first, std::pair(begin, range.second));
      if (range.first > end) it = owner_.emplace_hint(it, end, range);
    }
    if (begin < end) owner_.emplace_hint(it, begin, std::pair(end, buffer));
  }

  RoleProgram& role_;
  const std::vector<int64_t>& held_until_;
  const size_t streams_;
  std::vector<int32_t> last_;                             // by buffer and stream: last access
  std::vector<std::pair<int64_t, int64_t>> bytes_;        // by buffer: begin, end
  std::vector<bool> owns_;                                // by buffer: nothing else is in its bytes
  std::map<int64_t, std::pair<int64_t, int32_t>> owner_;  // by first byte: end, buffer
};

}  // namespace

std::vector<Block> place_kept(const RoleProgram& role, const std::vector<Slot>& pool) {
  std::vector<Block> blocks(role.buffers.size());
  int64_t device = 0, host = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Tensor& tensor = role.tensor(role.buffers[b]);
    blocks[b].bytes = tensor.type.bytes();
    if (tensor.kind == BufferKind::kStep) continue;
    int64_t& end = tensor.host ? host : device;
    blocks[b].offset = end;
    end += align_up(blocks[b].bytes);
  }
  for (const Slot& slot : pool) {
    for (const auto& [buffer, offset] : slot.buffers) blocks[at(buffer)].offset = device + offset;
    device += align_up(slot.bytes);
  }
  return blocks;
}

void place_others(RoleProgram& role, const std::vector<Block>& blocks, int64_t circle,
                  int64_t most) {
  for (const bool host : {false, true}) {
    std::vector<Block> here;
    std::vector<size_t> ids;
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (role.tensor(role.buffers[b]).host != host) continue;
      ids.push_back(b);
      here.push_back(blocks[b]);
    }
    (host ? role.host_bytes : role.arena_bytes) =
        here.empty() ? 0 : place_blocks(here, circle, host ? INT64_MAX : most);
    for (size_t i = 0; i < ids.size(); ++i) role.buffers[ids[i]].offset = here[i].offset;
  }
}

std::vector<int64_t> kept_until(const RoleProgram& role, const std::vector<int64_t>& held_until) {
  std::vector<int64_t> until(role.body.size());
  const ProgramProducts products(role);
  int64_t next = -1, product = -1;  // computations
  for (auto i = std::ssize(role.body) - 1; i >= 0; --i) {
    const Instruction& one = role.body[at(i)];
    until[at(i)] = std::max(i, held_until[at(i)]);
    for (const int64_t later : {next, product})
      if (is_collective(one.kind) && later >= 0 && role.body[at(later)].stream != one.stream)
        until[at(i)] = std::max(until[at(i)], later);
    if (one.kind == InstructionKind::kCompute) next = i;
    if (products.are_in(one)) product = i;
  }
  return until;
}

namespace {

// Returns, by buffer that a collective uses last, the first instruction of another stream that
// begins when this collective is known to be complete; the end of the body where none waits; 0 for
// others.
std::vector<int64_t> known_complete(const RoleProgram& role) {
  std::vector<int64_t> known(role.body.size(), std::ssize(role.body));
  std::vector<std::vector<size_t>> open(role.streams.size());  // by stream, in order
  std::vector<size_t> closed(role.streams.size());             // so many of them
  for (size_t i = 0; i < role.body.size(); ++i) {
    for (int32_t wait : role.body[i].waits) {
      const auto stream = at(role.body[at(wait)].stream);
      for (size_t& next = closed[stream];
           next < open[stream].size() && open[stream][next] <= at(wait); ++next)
        known[open[stream][next]] = static_cast<int64_t>(i);
    }
    if (is_collective(role.body[i].kind)) open[at(role.body[i].stream)].push_back(i);
  }
  std::vector<int64_t> by_buffer(role.buffers.size());
  for (size_t i = 0; i < role.body.size(); ++i)
    for (int32_t arg : role.body[i].args)
      by_buffer[at(arg)] = is_collective(role.body[i].kind) ? known[i] : 0;
  return by_buffer;
}

// Lets what a collective used last keep its memory until the collective is known to be complete,
// while no more than `most` bytes are alive at once: what took its place would wait for it, and
// with that, in a pipeline, all stages behind. Returns whether it has changed a block.
bool keep_until_complete(const std::vector<int64_t>& known, std::vector<int64_t> alive,
                         int64_t most, std::vector<Block>& blocks) {
  bool any = false;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].offset >= 0) continue;
    const int64_t bytes = align_up(blocks[b].bytes);
    for (int64_t& end = blocks[b].last; end + 1 < known[b]; ++end, any = true) {
      if (alive[at(end + 1)] + bytes > most) break;
      alive[at(end + 1)] += bytes;
    }
  }
  return any;
}

// Returns the bytes that are alive at each position.
std::vector<int64_t> alive_at(const RoleProgram& role, const std::vector<Block>& blocks) {
  std::vector<int64_t> alive(role.body.size() + 2);
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].offset >= 0 || blocks[b].last < 0 || role.tensor(role.buffers[b]).host) continue;
    alive[at(blocks[b].first)] += align_up(blocks[b].bytes);
    alive[at(blocks[b].last + 1)] -= align_up(blocks[b].bytes);
  }
  std::partial_sum(alive.begin(), alive.end(), alive.begin());
  return alive;
}

// Places the others so that as few as possible wait for collectives, in at most a hundredth more
// memory than they need at least: blocks that live longer leave gaps that others do not fill, so
// they may not live longer where most of the memory is in use.
void place_beside_collectives(RoleProgram& role, const std::vector<Block>& blocks) {
  place_others(role, blocks, kNoCircle);
  if (is_on_one_stream(role)) return;
  const std::vector<int64_t> known = known_complete(role), alive = alive_at(role, blocks);
  const int64_t peak = *std::max_element(alive.begin(), alive.end());
  const std::vector<Buffer> least = role.buffers;
  const int64_t bytes = role.arena_bytes, host_bytes = role.host_bytes, most = bytes + bytes / 100;
  for (const int64_t quarters : {4, 3, 2}) {
    std::vector<Block> longer = blocks;
    if (!keep_until_complete(known, alive, peak / 4 * quarters, longer)) break;
    place_others(role, longer, kNoCircle, most);
    if (role.arena_bytes <= most) return;
  }
  role.buffers = least;
  role.arena_bytes = bytes;
  role.host_bytes = host_bytes;
}

}  // namespace

// Step buffers live from the first instruction that names them to the last; see send_lifetimes.h
// for sends.
void place_buffers(RoleProgram& role, const std::vector<int64_t>& held_until,
                   const std::vector<Overlap>& overlaps, const std::vector<Slot>& pool) {
  const auto n = static_cast<int64_t>(role.body.size());
  std::vector<Block> blocks = place_kept(role, pool);
  for (Block& block : blocks) block.first = n, block.last = -1;
  const std::vector<int64_t> until = kept_until(role, held_until);
  for (int64_t i = 0; i < n; ++i) {
    const Instruction& instruction = role.body[at(i)];
    for (int32_t arg : instruction.args) {
      Block& block = blocks[at(arg)];
      block.first = std::min(block.first, i);
      block.last = std::max(block.last, until[at(i)]);
    }
  }
  for (const Report& report : role.reports) blocks[at(report.buffer)].last = n;
  stretch(blocks, overlaps);
  place_beside_collectives(role, blocks);
}

namespace {

bool is_written(const RoleProgram& role, const Instruction& one, size_t arg) {
  if (one.kind != InstructionKind::kCompute) return access_of(one.kind, arg).writes;
  // Where the steps are laid side by side the programs are elsewhere.
  return role.programs.empty() || role.programs[at(one.program)].arg_written[arg];
}

}  // namespace

void wait_for_data(RoleProgram& role) {
  if (is_on_one_stream(role)) return;
  const size_t streams = role.streams.size();
  // These list, by buffer and stream, the last instruction that writes, and that reads or writes.
  std::vector<int32_t> writes(role.buffers.size() * streams, -1), accesses = writes;
  for (size_t i = 0; i < role.body.size(); ++i) {
    Instruction& instruction = role.body[i];
    std::vector<int32_t>& waits = instruction.waits;
    const auto own = at(instruction.stream);
    for (size_t a = 0; a < instruction.args.size(); ++a) {
      const size_t first = at(instruction.args[a]) * streams;
      const bool writes_it = is_written(role, instruction, a);
      const std::vector<int32_t>& last = writes_it ? accesses : writes;
      for (size_t s = 0; s < streams; ++s)
        if (s != own && last[first + s] >= 0) waits.push_back(last[first + s]);
      accesses[first + own] = static_cast<int32_t>(i);
      if (writes_it) writes[first + own] = static_cast<int32_t>(i);
    }
    sort_unique(waits);
  }
}

void wait_for_memory(RoleProgram& role, const std::vector<int64_t>& held_until) {
  MemoryWaits(role, held_until).run();
}

std::vector<TensorCut> cuts_of(const Dag& dag, const Value& state, Shape own, Shape whole) {
  std::vector<TensorCut> cuts;
  const auto ranks_of = [&](const TensorCut& cut) { return dag.mesh[at(cut.axis)].size; };
  for (auto lies = state.over.rbegin(); lies != state.over.rend(); ++lies) {
    int64_t& extent = own[at(lies->layout.dim)];
    cuts.insert(cuts.begin(),
                {lies->axis, lies->layout.dim, lies->layout.outer, extent / lies->layout.outer});
    extent *= ranks_of(cuts.front());
  }
  for (TensorCut& cut : cuts) {
    const int64_t blocks = cut.outer * cut.block;
    int64_t& left = whole[at(cut.dim)];
    if (left == blocks * ranks_of(cut)) cut.block = 0;
    left = blocks;
  }
  return cuts;
}

void drop_implied_waits(std::vector<Instruction>& section, size_t streams) {
  // This lists, by instruction and stream, the last one there that is complete when it begins.
  std::vector<int32_t> known(section.size() * streams, -1);
  std::vector<int32_t> last(streams, -1);  // by stream, so far
  for (size_t i = 0; i < section.size(); ++i) {
    int32_t* const own = known.data() + i * streams;
    const auto learn = [&](int32_t before) {
      const int32_t* const theirs = known.data() + at(before) * streams;
      for (size_t s = 0; s < streams; ++s) own[s] = std::max(own[s], theirs[s]);
      int32_t& there = own[at(section[at(before)].stream)];
      there = std::max(there, before);
    };
    if (int32_t& before = last[at(section[i].stream)]; before >= 0) learn(before);
    last[at(section[i].stream)] = static_cast<int32_t>(i);
    std::vector<int32_t> waits = std::exchange(section[i].waits, {});
    for (auto wait = waits.rbegin(); wait != waits.rend(); ++wait) {
      if (own[at(section[at(*wait)].stream)] >= *wait) continue;
      learn(*wait);
      section[i].waits.insert(section[i].waits.begin(), *wait);
    }
  }
}

}  // namespace piper
