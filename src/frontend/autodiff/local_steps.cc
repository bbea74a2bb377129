// Makes what sites that take local steps compute: a copy of the model for each site, and the step
// that the outer optimizer takes between them.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "piper/base/float16.h"
#include "piper/frontend/autodiff.h"
#include "piper/ir/ops.h"
#include "piper/ir/optimizers.h"
#include "piper/plan/sites.h"
#include "update.h"

namespace piper {
namespace {

// Copies a forward graph site by site. What no site changes, as constants and frozen parameters,
// all of them read.
class SiteCopies {
 public:
  SiteCopies(const Graph& from, const std::string& tag) : from_(from) {
    to_.tag_names = from.tag_names;
    to_.batch = from.batch;
    tag_ = to_.add_tag(tag);
    of_.resize(from.values.size());
    for (const StateUpdate& update : from.updates) kept_.insert(update.state);
  }

  Graph run(int64_t sites) {
    for (int64_t site = 0; site < sites; ++site) copy(site);
    for (const Param& param : from_.params)
      if (!is_own(param)) {
        to_.params.push_back(param);
        to_.params.back().value = of_[param.value.index()];
      }
    if (from_.step.valid()) to_.step = of_[from_.step.index()];
    return std::move(to_);
  }

 private:
  // Returns whether each site has its own: what is trained, and what the model itself keeps.
  bool is_own(const Param& param) const { return !param.frozen || kept_.contains(param.value); }
  bool is_shared(size_t v) const { return shared_.empty() ? false : shared_[v]; }

  void copy(int64_t site) {
    if (site == 0) find_shared();
    for (size_t v = 0; v < from_.values.size(); ++v) {
      const Value& value = from_.values[v];
      if (value.kind == ValueKind::kNode || (is_shared(v) && site > 0)) continue;
      Value own = value;
      if (!is_shared(v)) own.name = name_at_site(site, value.name);
      of_[v] = to_.add_value(std::move(own));
    }
    for (const ValueId input : from_.inputs) to_.inputs.push_back(of_[input.index()]);
    for (const Node& node : from_.nodes) copy(node, site);
    for (const StateUpdate& update : from_.updates)
      to_.updates.push_back({of_[update.state.index()], of_[update.next.index()]});
    for (const Param& param : from_.params) {
      if (!is_own(param)) continue;
      Param own = param;
      own.name = name_at_site(site, param.name);
      for (std::string& alias : own.aliases) alias = name_at_site(site, alias);
      own.value = of_[param.value.index()];
      to_.params.push_back(std::move(own));
    }
    const ValueId loss = of_[from_.loss.index()];
    to_.loss = site == 0 ? loss : sum_of(to_.loss, loss);
    if (!from_.weight.valid()) return;
    const ValueId weight = of_[from_.weight.index()];
    to_.weight = site == 0 ? weight : sum_of(to_.weight, weight);
  }
  void find_shared() {
    shared_.assign(from_.values.size(), false);
    for (size_t v = 0; v < from_.values.size(); ++v)
      shared_[v] = from_.values[v].kind == ValueKind::kConstant;
    for (const Param& param : from_.params)
      if (!is_own(param)) shared_[param.value.index()] = true;
    if (from_.step.valid()) shared_[from_.step.index()] = true;
  }
  void copy(const Node& node, int64_t site) {
    Node own = node;
    own.name = name_at_site(site, node.name);
    std::vector<TensorType> types;
    for (const ValueId output : node.outputs) types.push_back(from_.value(output).type);
    for (ValueId& input : own.inputs)
      if (input.valid()) input = of_[input.index()];
    if (const OpDef* def = find_op(own.op); def != nullptr && def->draws >= 0 && site > 0) {
      ValueId& key = own.inputs[static_cast<size_t>(def->draws)];
      key = key_at(site, key);
    }
    to_.set_tag(own, tag_, static_cast<int32_t>(site));
    const NodeId made = to_.add_node(std::move(own), types);
    for (size_t k = 0; k < node.outputs.size(); ++k)
      of_[node.outputs[k].index()] = to_.node(made).outputs[k];
    if (is_step_sum(node))  // the verifier knows it by its name
      to_.value(of_[node.outputs[0].index()]).name =
          name_at_site(site, from_.value(node.outputs[0]).name);
  }
  // Samples of different sites have the same numbers, and draw by different keys.
  ValueId key_at(int64_t site, ValueId key) {
    const auto [known, is_new] = keys_.try_emplace({site, key});
    if (!is_new) return known->second;
    const Value of_all = to_.value(key);
    uint64_t number = 0;
    std::memcpy(&number, of_all.data.span().data(), sizeof number);
    number += static_cast<uint64_t>(site);
    known->second = to_.add_constant(name_at_site(site, of_all.name), of_all.type,
                                     Bytes::copy_of(&number, sizeof number));
    return known->second;
  }
  ValueId sum_of(ValueId a, ValueId b) {
    Builder build(to_);
    build.tags = to_.node(to_.value(a).producer).tags;
    return build.op1("Add", {a, b});
  }

  const Graph& from_;
  std::set<ValueId> kept_;  // what the model itself keeps, of `from_`
  Graph to_;
  int tag_ = 0;
  std::vector<ValueId> of_;   // by value of `from_`: its copy for the site at hand
  std::vector<bool> shared_;  // by value of `from_`
  std::map<std::pair<int64_t, ValueId>, ValueId> keys_;  // by site and key of the model
};

// Builds the step of the outer optimizer, and those before and after it where it is delayed.
class OuterStep {
 public:
  OuterStep(const Graph& copies, int64_t sites, const OuterSpec& spec,
            std::span<const std::string> region_tags)
      : from_(copies),
        sites_(sites),
        spec_(spec),
        region_tags_(region_tags),
        readers_(readers(copies)) {
    backward_.graph.tag_names = copies.tag_names;
    backward_.graph.batch = copies.batch;
    for (const Param& param : copies.params) named_.emplace(param.name, &param);
    for (const StateUpdate& update : copies.updates) next_of_.emplace(update.state, update.next);
  }

  Result<Graph> run() {
    for (const auto& [param, name] : joined())
      if (param->frozen)
        add_mean(*param, name);
      else
        add(*param, name);
    Graph& graph = backward_.graph;
    PIPER_ASSIGN(const std::vector<const ParamGroup*> groups,
                 groups_of(graph, spec_.optimizer.groups));
    PIPER_TRY(check_types(graph, groups));
    const std::vector<bool> stacks = stacks_of(graph);
    const std::vector<std::vector<ValueId>> at_sites = std::move(at_sites_);
    Graph step = append_update(std::move(backward_), spec_.optimizer, groups, stacks);
    step.grad_norm = {};  // nobody reads it
    step.value(step.step).name = spec_.step;
    if (spec_.sent) {
      send_gradients(step);
      PIPER_ASSIGN(step, in_topological_order(std::move(step)));
    }
    if (spec_.optimizer.ema) begin_averages(step);
    for (size_t p = 0; p < step.params.size() && !spec_.is_delayed; ++p)
      for (const ValueId site : at_sites[p]) follow(step, step.params[p], site);
    return without_dead_nodes(std::move(step), false);
  }

  Graph run_taking() {
    for_each_of_site([&](const Param&, const std::string&, const Param& of_site) {
      const ValueId site = add_like(of_site, of_site.name, true);
      const ValueId taken = add_like(of_site, taken_of(of_site.name), true, false);
      const ValueId sum = sum_of({{&of_site, site}}, 1, taken_of(of_site.name) + ".sum");
      Builder build = update_of(backward_.graph, of_site.scope, taken_of(of_site.name) + ".next/");
      const ValueId next = times(build, sum, 1);
      backward_.graph.updates.push_back({taken, of_type(build, next, taken), site});
    });
    return without_dead_nodes(std::move(backward_.graph), false);
  }

  Graph run_joining() {
    ValueId outer;
    for_each_of_site([&](const Param& first, const std::string& name, const Param& of_site) {
      if (&first == &of_site) outer = add_like(first, name, false);
      const ValueId site = add_like(of_site, of_site.name, true);
      const ValueId sum = sum_of({{&of_site, outer}}, 1 - spec_.mix, of_site.name + ".sum");
      Builder build = update_of(backward_.graph, of_site.scope, of_site.name + ".next/");
      ValueId next = times(build, sum, 1);
      if (spec_.mix > 0) next = build.add(times(build, of_type(build, site, sum), spec_.mix), sum);
      backward_.graph.updates.push_back({site, of_type(build, next, site), site});
    });
    return without_dead_nodes(std::move(backward_.graph), false);
  }

 private:
  // Returns the value in the type of the other one.
  static ValueId of_type(Builder& build, ValueId value, ValueId like) {
    const DType type = build.type(like).dtype;
    return build.type(value).dtype == type ? value : build.cast(value, type);
  }
  // Returns the first site's of what is joined, and the names of the outer ones: parameters that
  // are trained, and what the model itself keeps, as running means.
  std::vector<std::pair<const Param*, std::string>> joined() const {
    std::vector<std::pair<const Param*, std::string>> found;
    for (const Param& param : from_.params)
      if (const auto site = site_of(param.name);
          (!param.frozen || next_of_.contains(param.value)) && site && site->site == 0 &&
          spec_.names.contains(std::string(site->name)))
        found.emplace_back(&param, site->name);
    return found;
  }
  // Visits them at each site: visit(the first site's, the name, the site's).
  template <class Visit>
  void for_each_of_site(Visit visit) const {
    for (const auto& [param, name] : joined())
      for (int64_t k = 0; k < sites_; ++k) visit(*param, name, *named_.at(name_at_site(k, name)));
  }
  static Builder update_of(Graph& graph, const std::string& scope, std::string prefix) {
    Builder build(graph);
    build.pass = Pass::kU;
    build.scope = scope;
    build.name_prefix = std::move(prefix);
    return build;
  }
  static ValueId times(Builder& build, ValueId value, double factor) {
    return build.mul(value, build.scalar(factor, build.type(value).dtype));
  }

  // The outer optimizer is one for all parameters that it joins.
  Status check_types(const Graph& graph, const std::vector<const ParamGroup*>& groups) const {
    if (graph.params.empty()) return fail("every parameter is frozen: there is nothing to train");
    for (size_t p = 0; p < graph.params.size(); ++p) {
      const Param& param = graph.params[p];
      const OptimizerDef& def = find_optimizer(optimizer_of(*groups[p], spec_.optimizer).name);
      const TensorType& type = graph.value(param.value).type;
      if (!param.frozen && type.shape.size() < def.least_rank)
        return fail("outer: {} updates matrices, and '{}' is {}", def.name,
                    quote_control(param.name), to_string(type))
            .with_note(
                "help: an optimizer of tensors of all shapes, such as sgd or adamw; or 'match' for "
                "matrices alone");
    }
    return ok_status();
  }

  // Adds a parameter like another one, which begins with the same values or with zeros.
  ValueId add_like(const Param& like, const std::string& called, bool frozen, bool begins = true) {
    Graph& graph = backward_.graph;
    const Value& value = from_.value(like.value);
    Param own = like;
    own.name = called;
    own.value = graph.add_value({.name = called,
                                 .type = value.type,
                                 .kind = ValueKind::kState,
                                 .data = begins ? value.data : Bytes(),
                                 .fill = begins ? value.fill : 0});
    own.frozen = frozen;
    if (!begins) own.aliases.clear();
    if (!site_of(called))
      for (std::string& alias : own.aliases) alias = alias.substr(name_at_site(0, "").size());
    graph.params.push_back(own);
    at_sites_.emplace_back();
    backward_.contributions.emplace_back();
    return own.value;
  }
  // Adds an outer parameter and those of the sites; `param` is the first site's.
  void add(const Param& param, const std::string& name) {
    const ValueId outer = add_like(param, name, false);
    const size_t p = at_sites_.size() - 1;
    for (int64_t k = 0; k < sites_; ++k) {
      const Param& of_site = *named_.at(name_at_site(k, name));
      const ValueId site = add_site(of_site, p);
      double share = 1 / static_cast<double>(sites_);
      for (const std::vector<int32_t>& tags : regions_of(of_site)) {
        const ValueId term = distance(of_site, outer, site, tags, share);
        backward_.contributions[p].push_back({NodeId(), 0, spec_.sent ? sent(term, name) : term});
        share = 0;  // other regions hold the same parameter
      }
    }
  }
  // Returns a term as it arrives at the last site, which adds up those of all.
  ValueId sent(ValueId term, const std::string& name) {
    const Node made_by = backward_.graph.node(backward_.graph.value(term).producer);
    const Param& last = *named_.at(name_at_site(sites_ - 1, name));
    const TensorType type = backward_.graph.value(term).type;
    Builder put(backward_.graph);
    put.scope = made_by.scope, put.tags = made_by.tags, put.pass = made_by.pass;
    put.name_prefix = backward_.graph.value(term).name + ".sent/";
    Builder take = builder_of(last, regions_of(last)[0], "arrived");
    return take_as(take, put_as(put, term, *spec_.sent, 0), type, *spec_.sent, 0);
  }
  // Lets all sites read the gradients as they travel.
  void send_gradients(Graph& step) const {
    const auto all = readers(step);
    for (const Param& param : std::vector(step.params)) {
      if (!param.gradient.valid()) continue;
      Builder build = update_of(step, param.scope, param.name + ".grad.sent/");
      const ValueId sent = put_as(build, param.gradient, *spec_.sent, 0),
                    taken = take_as(build, sent, build.type(param.gradient), *spec_.sent, 0);
      for (const NodeId id : all[param.gradient.index()])
        std::ranges::replace(step.node(id).inputs, param.gradient, taken);
    }
  }
  // Adds what the outer parameter p reads of a site.
  ValueId add_site(const Param& of_site, size_t p) {
    const ValueId site = spec_.is_delayed ? add_like(of_site, taken_of(of_site.name), true, false)
                                          : add_like(of_site, of_site.name, true);
    at_sites_[p].push_back(site);
    return site;
  }
  // Adds what the model itself keeps, which becomes the mean of what the sites have.
  void add_mean(const Param& param, const std::string& name) {
    const ValueId outer = add_like(param, name, true);
    const size_t p = at_sites_.size() - 1;
    std::vector<std::pair<const Param*, ValueId>> terms;
    for (int64_t k = 0; k < sites_; ++k) {
      const Param& of_site = *named_.at(name_at_site(k, name));
      terms.emplace_back(&of_site, add_site(of_site, p));
    }
    const ValueId mean = sum_of(terms, 1 / static_cast<double>(sites_), name + ".batch");
    Builder build = update_of(backward_.graph, param.scope, name + ".next/");
    const ValueId next = times(build, mean, 1);
    backward_.graph.updates.push_back({outer, of_type(build, next, outer)});
  }
  // Returns the tags of an op of each region that reads the parameter, or that makes what is kept.
  std::vector<std::vector<int32_t>> regions_of(const Param& of_site) const {
    std::vector<std::vector<int32_t>> tags, regions;
    for (const NodeId id : readers_[of_site.value.index()]) {
      std::vector<int32_t> region;
      for (const std::string& tag : region_tags_)
        region.push_back(from_.tag(from_.node(id), from_.tag_index(tag)));
      if (std::ranges::count(regions, region) > 0) continue;
      regions.push_back(std::move(region));
      tags.push_back(from_.node(id).tags);
    }
    if (!tags.empty()) return tags;
    const auto next = next_of_.find(of_site.value);
    return {next == next_of_.end() ? std::vector<int32_t>()
                                   : from_.node(from_.value(next->second).producer).tags};
  }
  Builder builder_of(const Param& of_site, const std::vector<int32_t>& tags, const char* what) {
    Builder build(backward_.graph);
    build.pass = Pass::kBW;
    build.scope = of_site.scope;
    build.name_prefix = fmt::format("{}.{}/", of_site.name, what);
    build.tags = tags;
    return build;
  }
  // Returns what a region of a site adds to the gradient: its distance, times its share of the
  // mean.
  ValueId distance(const Param& of_site, ValueId outer, ValueId site,
                   const std::vector<int32_t>& tags, double share) {
    Builder build = builder_of(of_site, tags, "distance");
    if (info(build.type(outer).dtype).bytes < 4)
      outer = build.cast(outer, DType::kF32), site = build.cast(site, DType::kF32);
    return times(build, build.op1("Sub", {outer, site}), share);
  }
  // Returns the sum of what sites have, times a factor: of each, the regions that read its
  // parameter add terms. Others than the first hold the same value.
  ValueId sum_of(const std::vector<std::pair<const Param*, ValueId>>& terms, double factor,
                 const std::string& name) {
    std::vector<ValueId> uses;
    for (const auto& [of_site, value] : terms) {
      double own_factor = factor;
      for (const std::vector<int32_t>& tags : regions_of(*of_site)) {
        Builder build = builder_of(*of_site, tags, "now");
        const bool is_narrow = info(build.type(value).dtype).bytes < 4;
        const ValueId own = is_narrow ? build.cast(value, DType::kF32) : value;
        uses.push_back(times(build, own, std::exchange(own_factor, 0)));
      }
    }
    Builder build = update_of(backward_.graph, terms[0].first->scope, name + "/");
    const ValueId sum = build.op1("StepSum", uses);
    backward_.graph.value(sum).name = name;
    return sum;
  }
  // Averages are there before the first outer update: evaluations may read them.
  static void begin_averages(Graph& step) {
    std::map<std::string, ValueId> states;
    for (const StateUpdate& update : step.updates)
      states.emplace(step.value(update.state).name, update.state);
    for (const Param& param : step.params)
      if (const auto average = states.find(average_of(param.name)); average != states.end()) {
        const Value& from = step.value(param.value);
        Value& to = step.value(average->second);
        to.data = as_type(to.type.dtype, from), to.fill = from.fill;
      }
  }
  // Returns the elements that a state begins with. Averages of 16-bit parameters have 32 bits.
  static Bytes as_type(DType dtype, const Value& from) {
    if (from.data.size == 0 || from.type.dtype == dtype) return from.data;
    PIPER_CHECK(is_half(from.type.dtype) && dtype == DType::kF32, "{}", from.name);
    const int64_t count = num_elements(from.type.shape);
    const auto widen = [halves = from.data, type = from.type.dtype, count] {
      std::vector<float> wide(static_cast<size_t>(count));
      widen_halves(type, halves.made().data, wide.data(), count);
      return Bytes::copy_of(wide.data(), wide.size() * sizeof(float));
    };
    return Bytes::deferred(static_cast<size_t>(count) * sizeof(float), widen);
  }
  // Lets a site's parameter become what the outer one becomes.
  static void follow(Graph& step, const Param& outer, ValueId site) {
    const auto update =
        std::find_if(step.updates.begin(), step.updates.end(),
                     [&](const StateUpdate& one) { return one.state == outer.value; });
    Builder build = update_of(step, outer.scope, step.value(site).name + ".next/");
    step.updates.push_back({site, times(build, update->next, 1), site});
  }

  const Graph& from_;
  const int64_t sites_;
  const OuterSpec& spec_;
  const std::span<const std::string> region_tags_;  // that the graph has
  const std::vector<std::vector<NodeId>> readers_;
  std::map<std::string, const Param*> named_;
  std::map<ValueId, ValueId> next_of_;  // of what the model itself keeps
  BackwardPass backward_;
  std::vector<std::vector<ValueId>> at_sites_;  // by parameter: of outer ones, those of the sites
};

}  // namespace

Graph copy_for_sites(const Graph& forward, int64_t sites, const std::string& tag) {
  return SiteCopies(forward, tag).run(sites);
}

Result<Graph> outer_step(const Graph& copies, int64_t sites, const OuterSpec& spec,
                         std::span<const std::string> region_tags) {
  return OuterStep(copies, sites, spec, region_tags).run();
}

Graph taking_step(const Graph& copies, int64_t sites, const OuterSpec& spec,
                  std::span<const std::string> region_tags) {
  return OuterStep(copies, sites, spec, region_tags).run_taking();
}

Graph joining_step(const Graph& copies, int64_t sites, const OuterSpec& spec,
                   std::span<const std::string> region_tags) {
  return OuterStep(copies, sites, spec, region_tags).run_joining();
}

}  // namespace piper
