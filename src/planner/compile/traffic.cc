// Bytes that programs move in device memory, for --explain.
#include "traffic.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "piper/devices/registry.h"

namespace piper {
namespace {

class Counter {
 public:
  explicit Counter(const RoleProgram& role) : made_(for_its_target(role)) {
    for (const FusedProgram& program : made_.programs) ops_.push_back(traffic_of(program));
  }

  MemoryTraffic run() {
    for (const Instruction& one : made_.role.body)
      if (one.kind == InstructionKind::kCompute) add(one);
    MemoryTraffic result;
    for (auto& [key, kind] : kinds_) result.kinds.push_back(std::move(kind));
    result.tensors.assign(tensors_.begin(), tensors_.end());
    const auto by_bytes = [](const auto& a, const auto& b) { return a.bytes() > b.bytes(); };
    std::stable_sort(result.kinds.begin(), result.kinds.end(), by_bytes);
    std::stable_sort(result.tensors.begin(), result.tensors.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    return result;
  }

 private:
  void add(const Instruction& one) {
    const FusedProgram& program = made_.programs[index_of(one.program)];
    for (const PassTraffic& op : ops_[index_of(one.program)]) {
      auto& kind = kinds_[{one.pass, op.kind, op.is_product}];
      kind.pass = one.pass;
      kind.op = op.kind;
      kind.is_product = op.is_product;
      ++kind.runs;
      for (const auto& [value, bytes] : op.read) kind.read += bytes;
      for (const auto& [value, bytes] : op.written) kind.written += bytes;
      for (const auto* moved : {&op.read, &op.written})
        for (const auto& [value, bytes] : *moved)
          tensors_[value < program.num_args ? made_.role.tensor(one.args[index_of(value)]).name
                                            : fmt::format("within '{}'", program.label)] += bytes;
    }
  }

  const TargetRole made_;
  std::vector<std::vector<PassTraffic>> ops_;  // by program
  std::map<std::tuple<TaskPass, std::string, bool>, MemoryTraffic::Kind> kinds_;
  std::map<std::string, int64_t> tensors_;
};

int64_t sum_of(const std::vector<MemoryTraffic::Kind>& kinds, bool products) {
  int64_t bytes = 0;
  for (const MemoryTraffic::Kind& kind : kinds)
    if (kind.is_product == products) bytes += kind.bytes();
  return bytes;
}

// Prints bytes in decimal units, as bandwidths are given.
std::string traffic_of_bytes(int64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (number >= 1e9) return fmt::format("{:.2f} GB", number / 1e9);
  if (number >= 1e6) return fmt::format("{:.2f} MB", number / 1e6);
  return fmt::format("{:.2f} kB", number / 1e3);
}

}  // namespace

int64_t MemoryTraffic::product_bytes() const { return sum_of(kinds, true); }
int64_t MemoryTraffic::other_bytes() const { return sum_of(kinds, false); }

std::vector<MemoryTraffic> memory_traffic(const PlanSet& set) {
  std::vector<MemoryTraffic> result;
  for (const RoleProgram& role : set.roles) result.push_back(Counter(role).run());
  return result;
}

std::vector<std::string> memory_traffic_lines(const PlanSet& set, const Summary& summary) {
  constexpr size_t kTensors = 5;
  const std::vector<MemoryTraffic> by_role = memory_traffic(set);
  std::vector<std::string> lines;
  for (size_t r = 0; r < by_role.size(); ++r) {
    const MemoryTraffic& traffic = by_role[r];
    std::string where;
    for (const DeviceSummary& device : summary.devices)
      if (index_of(device.role) == r) where += (where.empty() ? "" : ", ") + device.where;
    lines.push_back(fmt::format("{}: {} in a step on {} beside products and attention, {} of these",
                                where, traffic_of_bytes(traffic.other_bytes()), set.roles[r].target,
                                traffic_of_bytes(traffic.product_bytes())));
    lines.push_back(
        fmt::format("  {:<4} {:>6} {:>11} {:>11}  {}", "pass", "runs", "read", "written", "op"));
    for (const bool products : {false, true})
      for (const MemoryTraffic::Kind& kind : traffic.kinds)
        if (kind.is_product == products)
          lines.push_back(fmt::format("  {:<4} {:>6} {:>11} {:>11}  {}", name_of(kind.pass),
                                      kind.runs, traffic_of_bytes(kind.read),
                                      traffic_of_bytes(kind.written), kind.op));
    for (size_t t = 0; t < std::min(kTensors, traffic.tensors.size()); ++t)
      lines.push_back(fmt::format("  {:>11} of {}", traffic_of_bytes(traffic.tensors[t].second),
                                  traffic.tensors[t].first));
  }
  return lines;
}

}  // namespace piper
