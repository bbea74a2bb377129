// Fits rates of programs, messages and copies to a profile.
#include "fit.h"

#include <algorithm>
#include <cmath>

namespace piper::cluster {
namespace {

// Between threads a time of a few microseconds says nothing about bandwidths.
constexpr double kClockOff = 5e-6;

std::vector<double> row_of(const Parts& parts) { return {parts.begin(), parts.end()}; }

}  // namespace

std::vector<double> fit_factors(std::span<const std::vector<double>> rows,
                                std::span<const double> times, std::span<const double> prior,
                                double off) {
  const double pull = off > 0 ? 2e-2 : 1e-3;  // of the prior, against a whole row
  constexpr int kRounds = 2000;
  const size_t n = prior.size();
  std::vector<double> products(n * n), sides(n), factors(prior.begin(), prior.end());
  for (size_t i = 0; i < n; ++i) {
    products[i * n + i] = pull;
    sides[i] = pull * prior[i];
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    if (times[r] <= 0) continue;
    const double unit = times[r] + off;
    for (size_t i = 0; i < n; ++i) {
      sides[i] += rows[r][i] * times[r] / (unit * unit);
      for (size_t j = 0; j < n; ++j) products[i * n + j] += rows[r][i] * rows[r][j] / (unit * unit);
    }
  }
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < n; ++i) {
      double rest = sides[i];
      for (size_t j = 0; j < n; ++j)
        if (j != i) rest -= products[i * n + j] * factors[j];
      factors[i] = std::max(0.0, rest / products[i * n + i]);
    }
  return factors;
}

// ---- Programs -----------------------------------------------------------------------------------

double ProgramTimes::total_of(const Parts& parts) const {
  double total = 0;
  for (size_t p = 0; p < kParts; ++p) total += parts[p] * factors_[p];
  return total;
}

Result<ProgramTimes> ProgramTimes::make(const ClusterDevice& device, const MeasuredTimes* profile) {
  ProgramTimes made;
  made.device_ = device;
  if (!profile) return made;
  std::vector<std::vector<double>> rows;
  std::vector<double> times;
  for (const MeasuredTimes::Measured& one : profile->programs) {
    made.measured_[one.name] = one.median;
    if (one.work.empty()) continue;
    PIPER_ASSIGN(const ProgramTime time, time_on(device, one.work, one.name));
    rows.push_back(row_of(time.parts));
    times.push_back(one.median);
    made.near_.push_back({time.parts});
    if (time.least > 0) made.least_ = std::min(made.least_, one.median / time.least);
  }
  // Rates that the profile does not tell apart share one factor, that of all parts together.
  std::vector<std::vector<double>> totals;
  for (const Near& near : made.near_) {
    double total = 0;
    for (const double part : near.parts) total += part;
    totals.push_back({total});
  }
  const std::vector<double> all = fit_factors(totals, times, std::vector<double>{1});
  made.factors_ = fit_factors(rows, times, std::vector<double>(kParts, all[0]));
  for (size_t r = 0; r < rows.size(); ++r) {
    Near& near = made.near_[r];
    near.total = made.total_of(near.parts);
    near.off = times[r] > 0 && near.total > 0 ? std::log(times[r] / near.total) : 0;
  }
  return made;
}

// Returns the mean of the errors of near programs. Nearness is a normal density over the logarithm
// of the time and its shares (Nadaraya, 1964; Watson, 1964). Where nothing is near, the correction
// tends to none.
double ProgramTimes::correction(const Parts& parts, double total) const {
  constexpr double kWidth = 0.25, kNone = 0.2;
  double weights = kNone, sum = 0;
  for (const Near& near : near_) {
    if (near.total <= 0) continue;
    const double size = 0.1 * std::log(near.total / total);
    double distance = size * size;
    for (size_t p = 0; p < kParts; ++p) {
      const double difference = factors_[p] * (near.parts[p] / near.total - parts[p] / total);
      distance += difference * difference;
    }
    const double weight = std::exp(-distance / (2 * kWidth * kWidth));
    weights += weight;
    sum += weight * near.off;
  }
  return std::exp(sum / weights);
}

// Returns the longer of two times: the host launches ops while the device runs those before them.
Result<KnownTime> ProgramTimes::op_by_op(const Program& plan) const {
  FuseCounts counts;
  const FusedProgram ops = fuse(plan, counts, {.shares_passes = false});
  PIPER_ASSIGN(std::vector<PassWork> passes, passes_of(ops));
  for (size_t o = 0; o < ops.ops.size(); ++o)
    if (const auto found = device_.composed.find(ops.ops[o].op); found != device_.composed.end())
      passes.insert(passes.end(), at(found->second - 1), PassWork(passes[ops.pass_of(o)]));
  PIPER_ASSIGN(const ProgramTime time, time_on(device_, passes, plan.label));
  const double host = device_.per_op * static_cast<double>(passes.size());
  return KnownTime{std::max(time.total(), host), CostOrigin::kGuessed};
}

Result<KnownTime> ProgramTimes::of(const Program& plan, const FusedProgram& runs) const {
  if (!measured_.empty())
    if (const auto known = measured_.find(program_digest(plan)); known != measured_.end())
      return KnownTime{known->second, CostOrigin::kMeasured};
  if (device_.per_op > 0) return op_by_op(plan);
  PIPER_ASSIGN(const std::vector<PassWork> passes, passes_of(runs));
  PIPER_ASSIGN(const ProgramTime time, time_on(device_, passes, plan.label));
  if (near_.empty()) return KnownTime{time.total(), CostOrigin::kGuessed};
  const double total = total_of(time.parts);
  if (total <= 0) return KnownTime{time.least, CostOrigin::kInterpolated};
  return KnownTime{std::max(time.least * least_, total * correction(time.parts, total)),
                   CostOrigin::kInterpolated};
}

// ---- Messages and collectives -------------------------------------------------------------------

TransferTimes::TransferTimes(const Cluster& cluster, const Topology& topology,
                             const MeasuredTimes* profile)
    : cluster_(cluster), profile_(profile) {
  if (!profile) return;
  std::map<std::string, std::pair<std::vector<std::vector<double>>, std::vector<double>>> points;
  for (const MeasuredTimes::Measured& one : profile->communication) {
    if (one.ranks.empty() || one.ranks.back() >= topology.ranks()) continue;
    Spread spread = topology.spread_of(one.ranks);
    // What threads of one process told each other says nothing of links between nodes.
    const bool in_process = one.where == "inproc" || one.where == "device";
    if (in_process && spread.levels.size() > 1) continue;
    const auto& [measured, spread_here] = known_.emplace_back(&one, std::move(spread));
    const InstructionDef* const kind = find_instruction_by_word(one.name);
    if (!kind || kind->kind == InstructionKind::kSend) continue;
    Instruction like;
    like.kind = kind->kind;
    like.fast = one.fast;
    const ClusterDevice& device = cluster.devices[at(topology.device_of(one.ranks[0]))];
    const Way way = plain(spread_here, device, like, one.bytes);
    for (const std::string& key : {std::string(), one.name}) {
      points[key].first.push_back({way.latency, way.wire, way.sum});
      points[key].second.push_back(one.least);
    }
  }
  const Line one{1, 1, 1};
  for (const auto& [kind, table] : points)  // that of all is first
    lines_[kind] =
        fit_factors(table.first, table.second, kind.empty() ? one : lines_[""], kClockOff);
}

Way TransferTimes::plain(const Spread& spread, const ClusterDevice& device, const Instruction& one,
                         double bytes) const {
  return is_collective(one.kind) ? collective_way(cluster_, spread, device, one, bytes)
                                 : message_way(cluster_, spread, bytes);
}

TransferTimes::Time TransferTimes::of(const Spread& spread, const ClusterDevice& device,
                                      const Instruction& one, double bytes) const {
  Time time{plain(spread, device, one, bytes)};
  if (!profile_) return time;
  const std::string word = to_string(one.kind);
  for (const auto& [known, known_spread] : known_)
    if (known->name == word && known->bytes == bytes && known->fast == one.fast &&
        known_spread == spread) {
      const double all = time.way.total(), scale = all > 0 ? known->least / all : 0;
      time.way.latency = all > 0 ? time.way.latency * scale : known->least;
      time.way.wire *= scale;
      time.way.sum *= scale;
      time.origin = CostOrigin::kMeasured;
      return time;
    }
  const auto own = lines_.find(word), any = lines_.find("");
  if (any == lines_.end()) return time;
  const Line& line = own == lines_.end() ? any->second : own->second;
  time.way.latency *= line[0];
  time.way.wire *= line[1];
  time.way.sum *= line[2];
  time.origin = CostOrigin::kInterpolated;
  return time;
}

// ---- What stays on a rank -----------------------------------------------------------------------

KnownTime TransferTimes::send(double bytes) const {
  if (!profile_) return {};
  KnownTime nearest;
  double distance = 0;
  for (const MeasuredTimes::Measured& known : profile_->communication) {
    if (known.name != to_string(InstructionKind::kSend)) continue;
    const double off = std::abs(std::log((known.bytes + 1) / (bytes + 1)));
    if (nearest.origin != CostOrigin::kGuessed && off >= distance) continue;
    nearest = {known.median, off == 0 ? CostOrigin::kMeasured : CostOrigin::kInterpolated};
    distance = off;
  }
  return nearest;
}

// Takes the time of a byte from the nearest size that was measured.
KnownTime TransferTimes::local_of(std::string_view kind, std::string_view where, double bytes,
                                  double otherwise) const {
  if (!profile_) return {otherwise, CostOrigin::kGuessed};
  std::vector<std::vector<double>> rows;
  std::vector<double> times;
  for (const MeasuredTimes::Measured& known : profile_->local) {
    if (known.name != kind || known.where != where) continue;
    if (known.bytes == bytes) return {known.median, CostOrigin::kMeasured};
    rows.push_back({1e-6, known.bytes});
    times.push_back(known.median);
  }
  if (rows.empty()) return {otherwise, CostOrigin::kGuessed};
  const double each = bytes > 0 ? otherwise / bytes : 0;
  const std::vector<double> line = fit_factors(rows, times, std::vector<double>{0, each});
  return {line[0] * 1e-6 + line[1] * bytes, CostOrigin::kInterpolated};
}

KnownTime TransferTimes::local(const ClusterDevice& device, const RoleProgram& role,
                               const Instruction& one) const {
  return local_of(to_string(one.kind), way_of(role, one),
                  static_cast<double>(bytes_through(role, one)), local_time(device, role, one));
}

KnownTime TransferTimes::prepared(const ClusterDevice& device, double bytes) const {
  return local_of("prepared", "device", bytes,
                  device.launch + 2 * bytes / (device.bandwidth * device.of_memory));
}

}  // namespace piper::cluster
