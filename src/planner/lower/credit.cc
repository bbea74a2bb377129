// Orders the sums of gradients of streams with a credit.
#include "credit.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "at.h"
#include "gathers.h"
#include "piper/plan/flops.h"
#include "segments.h"

namespace piper {
namespace {

constexpr size_t kLast = std::numeric_limits<size_t>::max();

// Describes a reduction that is ready and not sent yet, with what rounds its result or adds to it.
struct WaitingSum {
  std::vector<size_t> instructions;
  std::set<int32_t> buffers;
  std::string stream;
  size_t turn = kLast;  // index of the first node of the forward that reads one of its parameters
  int64_t bytes = 0;
  double ready = 0, time = 0;
};

// Simulates a stream.
struct SumLane {
  const TaskStream* stream = nullptr;
  CreditCount count;
  std::vector<WaitingSum> waiting;                    // by when they are ready
  std::vector<std::pair<double, int64_t>> under_way;  // ends, and bytes
  double free_at = 0, chosen_at = 0;
};

class MessageOrder {
 public:
  MessageOrder(const RoleProgram& role, const Dag& dag, const std::vector<Overlap>& overlaps)
      : role_(role),
        dag_(dag),
        ends_(ends_of_overlaps(overlaps, role.body.size())),
        flops_(program_flops(role)) {
    for (size_t s = 0; s < dag.streams.size(); ++s)
      if (dag.streams[s].credit > 0) {
        SumLane& lane = lanes_[static_cast<int32_t>(s)];
        lane.stream = &dag.streams[s];
        lane.count.stream = lane.stream->name;
      }
    find_turns();
  }

  // Has the first message of a sum wait for its turn.
  void start_sum(const Instruction& one, size_t i) {
    WaitingSum made{.stream = dag_.streams[at(one.stream)].name, .ready = now_};
    for (int32_t arg : one.args) made.turn = std::min(made.turn, turn_of(arg));
    add_to(made, i);
    lanes_.at(one.stream).waiting.push_back(std::move(made));
  }

  // Returns the positions in the new order.
  std::vector<int32_t> run() {
    for (size_t i = 0; i < role_.body.size(); ++i) {
      const Instruction& one = role_.body[i];
      const bool moves = ends_[i] < 0 && rises(role_, one, dag_);
      const bool follows = moves && (one.first == 0 || began_behind(one));
      WaitingSum* const before = follows ? waiting_for(one) : nullptr;
      if (follows && !before) send_what_it_uses(one);
      if (before) {
        add_to(*before, i);
      } else if (moves && lanes_.contains(one.stream) && info(one.kind).adds) {
        start_sum(one, i);
      } else {
        run_computation(i);
      }
    }
    for (auto& [s, lane] : lanes_)
      while (!lane.waiting.empty()) send_next(lane);
    return std::move(order_);
  }
  std::vector<CreditCount> counts() const {
    std::vector<CreditCount> counts;
    for (const auto& [s, lane] : lanes_) counts.push_back(lane.count);
    return counts;
  }

 private:
  // Finds of which sum each buffer has a term, and when the forward reads that parameter.
  void find_turns() {
    std::map<ValueId, ValueId> param_of;  // by what microbatches read
    for (const Copy& copy : dag_.copies) param_of[copy.copy] = copy.master;
    for (const Version& version : dag_.versions) param_of[version.previous] = version.newest;
    std::map<ValueId, size_t> read_at;
    for (size_t n = 0; n < dag_.graph.nodes.size(); ++n)
      for (ValueId input : dag_.graph.nodes[n].inputs) {
        if (!input.valid() || dag_.graph.nodes[n].pass != Pass::kF) continue;
        for (auto of = param_of.find(input); of != param_of.end(); of = param_of.find(input))
          input = of->second;
        read_at.try_emplace(input, n);
      }
    std::map<ValueId, size_t> turn_of_sum;
    for (const Param& param : dag_.graph.params)
      if (const auto read = read_at.find(param.value); read != read_at.end())
        turn_of_sum[param.gradient] = read->second;
    const auto note = [&](int32_t buffer, size_t turn) {
      size_t& known = turns_.try_emplace(buffer, kLast).first->second;
      known = std::min(known, turn);
    };
    for (const Instruction& one : role_.body) {
      for (const Contribution& made : one.contributions) {
        const auto turn = turn_of_sum.find(dag_.sums[at(made.target)].value);
        if (turn != turn_of_sum.end()) note(one.args[at(made.arg)], turn->second);
      }
      for (const SumCombine& made : one.combines)
        for (int32_t from : made.from) note(one.args[at(made.arg)], turn_of(one.args[at(from)]));
      for (size_t a = 0; a + 1 < one.args.size() && takes_pairs(one.kind); a += 2)
        if (info(one.kind).adds) note(one.args[a + 1], turn_of(one.args[a]));
    }
  }
  size_t turn_of(int32_t buffer) const {
    const auto found = turns_.find(buffer);
    return found == turns_.end() ? kLast : found->second;
  }

  void add_to(WaitingSum& message, size_t i) {
    const Instruction& one = role_.body[i];
    message.instructions.push_back(i);
    for (int32_t arg : one.args)
      if (message.buffers.insert(arg).second) ++waiting_[arg];
    if (!info(one.kind).adds) return;
    const auto known = lanes_.find(one.stream);
    const TaskStream& stream = known == lanes_.end() ? dag_.streams[0] : *known->second.stream;
    const std::vector<int32_t>& axes = role_.groups[at(one.group)].axes;
    double members = 1;
    for (int32_t axis : axes) members *= static_cast<double>(dag_.mesh[at(axis)].size);
    const int64_t bytes = bytes_through(role_, one);
    const double ways = one.kind == InstructionKind::kAllReduce ? 2 : 1;
    message.bytes += bytes;
    message.time += static_cast<double>(stream.flops_of_message) +
                    ways * (members - 1) / members * static_cast<double>(bytes) *
                        static_cast<double>(stream.flops_of_byte);
  }
  // Returns whether a message that waits has the buffer.
  bool waits(int32_t buffer) const {
    const auto found = waiting_.find(buffer);
    return found != waiting_.end() && found->second > 0;
  }
  // Returns the message that waits and whose buffers the instruction uses; of slices, which keep
  // their order, the last one. Null: it uses none, or several that may change places.
  WaitingSum* waiting_for(const Instruction& one) {
    if (std::ranges::none_of(one.args, [&](int32_t arg) { return waits(arg); })) return nullptr;
    WaitingSum* last = nullptr;
    for (auto& [s, lane] : lanes_)
      for (WaitingSum& message : lane.waiting) {
        if (std::ranges::none_of(one.args,
                                 [&](int32_t arg) { return message.buffers.contains(arg); }))
          continue;
        if (last && (last->turn != message.turn || lane.count.stream != last->stream))
          return nullptr;
        last = &message;
      }
    return last;
  }

  // Says when a stream takes its next message, and which.
  struct NextSum {
    double time = 0;
    size_t message = 0;
  };
  static NextSum next_of(const SumLane& lane) {
    double time = std::max(lane.chosen_at, lane.waiting.front().ready);
    for (const WaitingSum& message : lane.waiting)
      time = std::min(time, std::max(lane.chosen_at, message.ready));
    while (true) {
      size_t best = lane.waiting.size();
      for (size_t m = 0; m < lane.waiting.size(); ++m)
        if (lane.waiting[m].ready <= time &&
            (best == lane.waiting.size() || lane.waiting[m].turn < lane.waiting[best].turn))
          best = m;
      int64_t bytes = 0;
      double first_end = std::numeric_limits<double>::max();
      for (const auto& [end, sent] : lane.under_way)
        if (end > time) bytes += sent, first_end = std::min(first_end, end);
      if (bytes == 0 || bytes + lane.waiting[best].bytes <= lane.stream->credit)
        return {time, best};
      time = first_end;
    }
  }
  void send_next(SumLane& lane) {
    const NextSum next = next_of(lane);
    const WaitingSum message = std::move(lane.waiting[next.message]);
    lane.waiting.erase(lane.waiting.begin() + static_cast<std::ptrdiff_t>(next.message));
    ++lane.count.messages;
    lane.count.early += next.message > 0 ? 1 : 0;
    lane.chosen_at = next.time;
    std::erase_if(lane.under_way, [&](const auto& sent) { return sent.first <= next.time; });
    lane.free_at = std::max(lane.free_at, next.time) + message.time;
    lane.under_way.emplace_back(lane.free_at, message.bytes);
    for (size_t i : message.instructions) order_.push_back(static_cast<int32_t>(i));
    for (int32_t buffer : message.buffers) {
      there_at_[buffer] = lane.free_at;
      --waiting_[buffer];
    }
  }

  // Returns whether the slices before this one of the same tensor have joined a message that sums
  // the tensor over other ranks first. Other slices are messages of their own, and keep their order
  // as they have one turn.
  bool began_behind(const Instruction& slice) const {
    if (!waits(slice.args[0])) return false;
    for (const auto& [s, lane] : lanes_)
      for (const WaitingSum& message : lane.waiting)
        if (message.buffers.contains(slice.args[0]) &&
            role_.body[message.instructions[0]].count == 0)
          return true;
    return false;
  }
  // Sends messages that wait, until none has a buffer that the instruction uses.
  void send_what_it_uses(const Instruction& one) {
    for (int32_t arg : one.args)
      for (auto& [s, lane] : lanes_)
        while (waits(arg) && std::ranges::any_of(lane.waiting, [&](const WaitingSum& message) {
                 return message.buffers.contains(arg);
               }))
          send_next(lane);
  }

  // A computation begins when the messages that it needs are there; those that begin before are
  // ahead of it. No message enters a pair.
  void run_computation(size_t i) {
    const bool inside = ends_[i] >= 0 && i > 0 && ends_[i - 1] == ends_[i];
    size_t end = i + 1;
    while (ends_[i] >= 0 && !inside && end <= at(ends_[i])) ++end;
    for (size_t k = i; k < end && !inside; ++k) {
      send_what_it_uses(role_.body[k]);
      for (int32_t arg : role_.body[k].args)
        if (const auto there = there_at_.find(arg); there != there_at_.end())
          now_ = std::max(now_, there->second);
    }
    for (auto& [s, lane] : lanes_)
      while (!inside && !lane.waiting.empty() && next_of(lane).time <= now_) send_next(lane);
    order_.push_back(static_cast<int32_t>(i));
    const Instruction& one = role_.body[i];
    if (one.kind == InstructionKind::kCompute && flops_) now_ += (*flops_)[at(one.program)];
  }

  const RoleProgram& role_;
  const Dag& dag_;
  const std::vector<int64_t> ends_;
  const Result<std::vector<double>> flops_;       // by program
  std::map<int32_t, SumLane> lanes_;              // by stream
  std::map<int32_t, size_t> turns_;               // by buffer
  std::unordered_map<int32_t, int32_t> waiting_;  // messages that wait, by buffer
  std::map<int32_t, double> there_at_;            // by buffer of a message that was sent
  std::vector<int32_t> order_;
  double now_ = 0;
};

}  // namespace

std::vector<int32_t> order_messages(RoleProgram& role, const Dag& dag,
                                    const std::vector<Overlap>& overlaps,
                                    std::vector<CreditCount>& counts) {
  std::vector<int32_t> moved(role.body.size());
  std::iota(moved.begin(), moved.end(), 0);
  if (std::ranges::none_of(dag.streams, [](const TaskStream& one) { return one.credit > 0; }))
    return moved;
  MessageOrder made(role, dag, overlaps);
  const std::vector<int32_t> order = made.run();
  add_counts(made.counts(), counts);
  std::vector<Instruction> body;
  body.reserve(order.size());
  for (int32_t i : order) {
    moved[at(i)] = static_cast<int32_t>(body.size());
    body.push_back(std::move(role.body[at(i)]));
  }
  role.body = std::move(body);
  return moved;
}

void add_counts(const std::vector<CreditCount>& more, std::vector<CreditCount>& counts) {
  for (const CreditCount& one : more) {
    const auto known = std::ranges::find(counts, one.stream, &CreditCount::stream);
    if (known == counts.end()) {
      counts.push_back(one);
    } else {
      known->messages += one.messages;
      known->early += one.early;
    }
  }
}

}  // namespace piper
