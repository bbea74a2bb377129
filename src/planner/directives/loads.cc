// The loads of regions: by time, by memory, by weights.
#include "loads.h"

#include <algorithm>
#include <limits>
#include <map>

#include "match.h"
#include "piper/ir/optimizers.h"
#include "piper/planner/cost.h"

namespace piper {
namespace {

// Returns what regions share: ops that the loss comes from, or what else the model gives out. Those
// on data only go where they are read, and what only a buffer's next value comes from is no
// region's own.
std::vector<bool> find_work(const Graph& graph) {
  std::vector<bool> work = data_ops(graph), read(graph.values.size());
  work.flip();
  for (ValueId output : graph.outputs) read[output.index()] = true;
  if (graph.loss.valid()) read[graph.loss.index()] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    const bool used = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
      return output.valid() && read[output.index()];
    });
    for (ValueId input : node.inputs)
      if (used && input.valid()) read[input.index()] = true;
    work[i] = work[i] && used;
  }
  return work;
}

// Returns bytes of values that work makes before position p and reads at or after it; p = 0 …
// nodes. Inputs, state and constants are at hand everywhere.
std::vector<double> crossing_bytes(const Graph& graph, const std::vector<bool>& work) {
  std::vector<double> change(graph.nodes.size() + 2);
  const auto all_readers = readers(graph);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    const auto last = std::find_if(all_readers[v].rbegin(), all_readers[v].rend(),
                                   [&](NodeId reader) { return work[reader.index()]; });
    if (!value.producer.valid() || !work[value.producer.index()] || last == all_readers[v].rend())
      continue;
    change[value.producer.index() + 1] += static_cast<double>(value.type.bytes());
    change[last->index() + 1] -= static_cast<double>(value.type.bytes());
  }
  for (size_t p = 1; p < change.size(); ++p) change[p] += change[p - 1];
  change.resize(graph.nodes.size() + 1);
  return change;
}

// Returns the type in which `precision` has the products of the node's module computed. Which
// regions it speaks of is not known yet.
std::optional<DType> type_of_products(const Strategy& strategy, const Node& node) {
  std::optional<DType> of_rest;
  for (const Precision& precision : strategy.precisions) {
    if (precision.match && precision.match->match(node.scope)) return precision.compute;
    if (!precision.match && !of_rest) of_rest = precision.compute;
  }
  return of_rest;
}

// Returns what training keeps of a parameter: itself, and if it is trained its gradient and the
// states of its optimizer.
double bytes_in_training(const TrainSpec& train, const Param& param, const ParamGroup* group,
                         const TensorType& type) {
  const auto own = static_cast<double>(type.bytes());
  if (param.frozen) return own;
  const OptimizerSpec& spec = group ? optimizer_of(*group, train) : train.optimizer;
  const OptimizerDef& def = find_optimizer(spec.name);
  const Attrs settings = with_defaults(def, spec.settings);
  double all = (train.ema ? 3 : 2) * own;
  // A direction that is made of matrices keeps their momentum.
  if (def.direction && def.find("momentum")) all += own;
  if (!def.states_need.empty() && settings.real(def.states_need) == 0) return all;
  for (size_t s = 0; s < def.states.size(); ++s) {
    TensorType state = type;
    if (!spec.states.empty()) state.dtype = spec.states[std::min(s, spec.states.size() - 1)];
    all += static_cast<double>(state.bytes());
  }
  return all;
}

}  // namespace

Result<Loads> Loads::make(const Graph& graph, const BalanceRule& balance, const JobCosts& costs) {
  Loads loads;
  const std::vector<bool> work = find_work(graph);
  loads.by_ = balance.by;
  loads.crossing_ = crossing_bytes(graph, work);
  loads.work_ = {0};
  for (const bool one : work) loads.work_.push_back(loads.work_.back() + one);
  loads.place(balance, costs);
  loads.find_parts(graph, balance, costs);
  if (balance.by != BalanceRule::By::kTime) {
    loads.count_bytes(graph, balance, costs);
    return loads;
  }
  PIPER_TRY(loads.count_time(graph, costs));
  return loads;
}

// Says for each region where it is: what there is of memory, and how far its neighbour.
void Loads::place(const BalanceRule& balance, const JobCosts& costs) {
  regions_.resize(static_cast<size_t>(std::clamp<int64_t>(balance.into, 0, std::ssize(work_))));
  messages_.resize(regions_.size() + 1);
  if (!costs.devices()) return;
  const DeviceCosts& devices = *costs.devices();
  Graph tagged;
  const auto tag = static_cast<size_t>(tagged.add_tag(balance.tag));
  std::vector<int32_t> before;
  for (size_t r = 0; r < regions_.size(); ++r) {
    std::vector<int32_t> tags(tag + 1, kNoTag);
    tags[tag] = static_cast<int32_t>(r);
    std::vector<int32_t> at = costs.place_of(tagged, tags);
    Region& region = regions_[r];
    region.measures.clear();
    double memory = 0;
    for (const int32_t kind : costs.kinds_at(at)) {
      const auto known = std::find(kinds_.begin(), kinds_.end(), kind);
      region.measures.push_back(static_cast<size_t>(known - kinds_.begin()));
      if (known == kinds_.end()) kinds_.push_back(kind);
      const double has = devices.memory_of(kind);
      memory = memory > 0 && has > 0 ? std::min(memory, has) : std::max(memory, has);
      region.name += (region.name.empty() ? "" : ", ") + devices.name_of(kind);
    }
    if (memory > 0) region.unit = 1 / memory;
    if (r > 0) messages_[r] = costs.message(before, at);
    before = std::move(at);
  }
}

void Loads::find_parts(const Graph& graph, const BalanceRule& balance, const JobCosts& costs) {
  parts_.assign(std::max<size_t>(kinds_.size(), 1), std::vector<double>(regions_.size()));
  for (const Split& split : costs.strategy().splits) {
    if (!is_placed(costs.strategy(), split)) continue;
    const std::vector<bool> in_parts = ops_in_parts(graph, split);
    split_of_.resize(graph.nodes.size(), -1);
    for (size_t i = 0; i < in_parts.size(); ++i)
      if (in_parts[i] && is_work(i)) split_of_[i] = static_cast<int32_t>(shares_.size());
    Graph tagged;
    const int tag = tagged.add_tag(balance.tag), part = tagged.add_tag(split.as);
    const auto place_of = [&](int of, size_t value) {
      std::vector<int32_t> tags(tagged.tag_names.size(), kNoTag);
      tags[static_cast<size_t>(of)] = static_cast<int32_t>(value);
      return costs.place_of(tagged, tags);
    };
    std::vector<double>& shares = shares_.emplace_back(regions_.size());
    std::vector<decltype(place_of(tag, 0))> places;  // by region
    for (size_t r = 0; r < regions_.size(); ++r) places.push_back(place_of(tag, r));
    for (size_t k = 0; k < static_cast<size_t>(split.into); ++k) {
      const auto of_part = place_of(part, k);
      std::vector<size_t> beside;  // regions on the device of the part, which share its load
      for (size_t r = 0; r < regions_.size(); ++r)
        if (places[r] == of_part) beside.push_back(r);
      for (const size_t r : beside)
        shares[r] += 1 / static_cast<double>(split.into) / static_cast<double>(beside.size());
    }
  }
}

void Loads::add_parts(size_t op, size_t measure, double load) {
  for (size_t r = 0; r < regions_.size(); ++r)
    parts_[measure][r] += shares_[static_cast<size_t>(split_of_[op])][r] * load;
}

Status Loads::count_time(const Graph& graph, const JobCosts& costs) {
  measures_.assign(std::max<size_t>(kinds_.size(), 1), {0});
  std::vector<bool> is_read(graph.values.size());
  for (const Node& node : graph.nodes)
    for (const ValueId input : node.inputs)
      if (input.valid()) is_read[input.index()] = true;
  if (graph.loss.valid()) is_read[graph.loss.index()] = true;
  for (size_t m = 0; m < measures_.size(); ++m)
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node& node = graph.nodes[i];
      double each = 0;
      if (is_work(i) && !costs.devices()) each = flops_of(graph, node);
      if (is_work(i) && costs.devices()) {
        const std::optional<DType> products = type_of_products(costs.strategy(), node);
        PIPER_ASSIGN(const double forward, costs.seconds(graph, node, kinds_[m], products));
        PIPER_ASSIGN(const double backward,
                     costs.seconds_of_gradient(graph, node, kinds_[m], is_read, products));
        each = forward + backward;
      }
      if (m == 0) whole_ += each;
      if (is_in_parts(i)) add_parts(i, m, std::exchange(each, 0));
      measures_[m].push_back(measures_[m].back() + each);
    }
  return ok_status();
}

// A region holds what its ops make for as many microbatches as the regions from it on, as where
// forwards and backwards take turns (Narayanan et al., Efficient Large-Scale Language Model
// Training on GPU Clusters, 2021).
void Loads::count_bytes(const Graph& graph, const BalanceRule& balance, const JobCosts& costs) {
  const bool in_training = balance.by == BalanceRule::By::kMemory;
  const TrainSpec& train = costs.strategy().train;
  // Groups that match nothing are an error that is told later.
  std::vector<const ParamGroup*> groups(graph.params.size());
  if (auto own = groups_of(graph, train.groups)) groups = *std::move(own);
  const auto all_readers = readers(graph);
  std::vector<double> own(graph.nodes.size());
  for (size_t p = 0; p < graph.params.size(); ++p) {
    const Param& param = graph.params[p];
    const TensorType& type = graph.value(param.value).type;
    Shared one{in_training ? bytes_in_training(train, param, groups[p], type)
                           : static_cast<double>(type.bytes()),
               {}};
    for (NodeId reader : all_readers[param.value.index()])
      if (is_work(reader.index())) one.readers.push_back(reader.index());
    // Each part is kept where it is; what reads the whole elsewhere keeps that, too.
    const auto placed =
        std::ranges::find_if(one.readers, [&](size_t op) { return is_in_parts(op); });
    if (placed != one.readers.end()) add_parts(*placed, 0, one.bytes);
    std::erase_if(one.readers, [&](size_t op) { return is_in_parts(op); });
    if (one.readers.empty()) continue;
    std::sort(one.readers.begin(), one.readers.end());
    own[one.readers.front()] += one.bytes;
    if (one.readers.size() > 1) shared_.push_back(std::move(one));
  }
  const int64_t microbatches = costs.cut().microbatches;
  const auto cuts = static_cast<double>(microbatches * costs.cut().replicas);
  measures_ = {{0}};
  made_ = {0};
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    double made = 0;
    for (ValueId output : graph.nodes[i].outputs)
      if (in_training && is_work(i) && output.valid() &&
          info(graph.value(output).type.dtype).is_float)
        made += static_cast<double>(graph.value(output).type.bytes());
    if (is_in_parts(i)) add_parts(i, 0, std::exchange(made, 0) / cuts);  // of one microbatch
    measures_[0].push_back(measures_[0].back() + own[i]);
    made_.push_back(made_.back() + made);
  }
  for (size_t r = 0; r < regions_.size(); ++r) {
    regions_[r].measures = {0};
    const auto in_flight = std::min(microbatches, static_cast<int64_t>(regions_.size() - r));
    regions_[r].held = static_cast<double>(in_flight) / cuts;
  }
}

double Loads::own(size_t r, size_t a, size_t b) const {
  const Region& region = regions_[r];
  double most = 0;
  for (const size_t m : region.measures)
    most = std::max(most, measures_[m][b] - measures_[m][a] + parts_[m][r]);
  if (by_ == BalanceRule::By::kTime) return most;
  for (const Shared& one : shared_) {
    const auto first = std::lower_bound(one.readers.begin(), one.readers.end(), a);
    if (one.readers.front() < a && first != one.readers.end() && *first < b) most += one.bytes;
  }
  return (most + region.held * (made_[b] - made_[a])) * region.unit;
}

double Loads::sent(size_t r, size_t p) const {
  if (by_ != BalanceRule::By::kTime || crossing_[p] <= 0) return 0;
  if (kinds_.empty()) return kFlopsPerSentByte * crossing_[p];
  return 2 * (messages_[r].latency + messages_[r].of_byte * crossing_[p]);  // and its gradient
}

double Loads::all(size_t r, size_t a, size_t b) const {
  if (work_between(a, b) == 0) return std::numeric_limits<double>::infinity();
  return own(r, a, b) + (sent(r, a) + sent(r + 1, b));
}

std::string Loads::describe(size_t r, size_t a, size_t b) const {
  const Region& region = regions_[r];
  const std::string on = region.name.empty() ? "" : " of " + region.name;
  if (by_ != BalanceRule::By::kTime)
    return fmt::format(
        "{}{}", human_bytes(static_cast<int64_t>(own(r, a, b) / region.unit)),
        region.unit == 1 ? "" : fmt::format(", {:.1f} % of the memory{}", 100 * own(r, a, b), on));
  if (const double time = own(r, a, b); !kinds_.empty())
    return fmt::format("{:.3g} {} of forward and backward{}", time < 1 ? 1e3 * time : time,
                       time < 1 ? "ms" : "s", region.name.empty() ? "" : " on " + region.name);
  return fmt::format("{:.1f} % of the forward FLOPs", whole_ > 0 ? 100 * own(r, a, b) / whole_ : 0);
}

}  // namespace piper
