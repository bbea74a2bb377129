// Prepares a plan set for the rules (cells, sections, free axes) and runs the rules.
#include "model.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>

#include "piper/base/parallel.h"
#include "piper/plan/outer_updates.h"
#include "piper/plan/windows.h"
#include "single.h"
#include "values.h"
#include "views.h"

namespace piper {
namespace {

constexpr size_t kFindingsPerRule = 16, kMaxAxes = 32;

std::vector<bool> find_alike_axes(const PlanSet& set) {
  const auto& mesh = set.roles[0].mesh;
  std::vector<bool> alike(mesh.size(), true);
  int64_t stride = 1;
  for (size_t a = mesh.size(); a-- > 0; stride *= mesh[a].second)
    for (int64_t rank = 0; rank < set.world(); ++rank)
      if (rank / stride % mesh[a].second != 0 &&
          set.role_of_rank[rank] != set.role_of_rank[rank - stride])
        alike[a] = false;
  return alike;
}

std::vector<bool> find_free_axes(const PlanSet& set, std::vector<bool> free) {
  for (const RoleProgram& role : set.roles)
    for (const Communicator& one : role.communicators)
      for (size_t a = 0; a < one.from.size(); ++a)
        if (one.from[a] >= 0) free[a] = false;
  return free;
}

}  // namespace

Result<Model> make_model(const PlanSet& set, bool has_sites) {
  if (set.roles.empty() || set.role_of_rank.empty())
    return fail("the plan set has no ranks").with_code(ExitCode::kPlan);
  for (const RoleProgram& role : set.roles)
    if (role.mesh != set.roles[0].mesh)
      return fail("the roles are for different meshes").with_code(ExitCode::kPlan);
  for (const RoleProgram& role : set.roles)
    if (role.steps_ahead != set.roles[0].steps_ahead)
      return fail("steps overlap in some roles only").with_code(ExitCode::kPlan);
  Model model;
  model.mesh = set.roles[0].mesh;
  if (model.mesh.size() > kMaxAxes)
    return fail("a mesh of {} axes is not supported: at most {}", model.mesh.size(), kMaxAxes)
        .with_code(ExitCode::kPlan);
  const int64_t world = ranks_of(model.mesh);
  if (world != set.world())
    return fail("the mesh has {} ranks, the plan set {}", world, set.world())
        .with_code(ExitCode::kPlan);
  for (int32_t role : set.role_of_rank)
    if (role < 0 || role >= static_cast<int32_t>(set.roles.size()))
      return fail("a rank has no role").with_code(ExitCode::kPlan);
  PIPER_TRY(find_facts(set, has_sites, model));
  model.alike_axis = find_alike_axes(set);
  model.free_axis = find_free_axes(set, model.alike_axis);
  model.followed = find_followed_axes(set);
  if (model.followed != 0) note_equal_elements(set, model);
  model.cell_of_rank.resize(static_cast<size_t>(world));
  for (int64_t rank = 0; rank < world; ++rank) {
    std::vector<int64_t> at = coordinates_of(model.mesh, rank);
    for (size_t a = 0; a < at.size(); ++a)
      if (model.free_axis[a]) at[a] = 0;
    const int64_t first = rank_of(model.mesh, at);
    if (first == rank) {
      model.cell_of_rank[rank] = static_cast<int32_t>(model.cells.size());
      const int32_t role = set.role_of_rank[rank];
      model.cells.push_back({&set.roles[role], &model.facts[role], rank, 1, std::move(at)});
    } else {
      model.cell_of_rank[rank] = model.cell_of_rank[first];
      ++model.cells[model.cell_of_rank[first]].peers;
    }
  }
  return model;
}

std::string Model::who(int32_t cell) const {
  const Cell& one = cells[cell];
  if (one.peers == 1) return fmt::format("rank {}", one.rank);
  return fmt::format("rank {} (and {} like it)", one.rank, one.peers - 1);
}

void for_each(const RoleProgram& role, size_t count, const std::function<void(size_t)>& work) {
  constexpr size_t kFew = 256;  // for so few instructions a second thread does not pay
  if (role.body.size() > kFew) return in_parallel(count, work);
  for (size_t i = 0; i < count; ++i) work(i);
}

namespace {

const std::vector<Instruction>& list_of(const Model& model, const Cell& cell,
                                        const SectionPart& part) {
  if (part.list) return cell.role->*part.list;
  return model.windows[static_cast<size_t>(cell.facts - model.facts.data())][part.window];
}

// Adds one cell of the section; `first_slot` is that of its stream 0.
void add_cell(const Model& model, size_t cell, int32_t first_slot, Section& section) {
  const Cell& of = model.cells[cell];
  const RoleProgram& role = *of.role;
  size_t size = 0, args = 0, waits = 0;
  for (const SectionPart& part : section.parts)
    for (const Instruction& one : list_of(model, of, part))
      ++size, args += one.args.size(), waits += one.waits.size();
  section.lists[cell].reserve(size);
  section.steps[cell].reserve(size);
  section.args[cell].reserve(args);
  section.waits[cell].reserve(waits);
  for (const SectionPart& part : section.parts) {
    const auto begin = static_cast<int32_t>(section.steps[cell].size());
    for (const Instruction& one : list_of(model, of, part)) {
      Step& step = section.steps[cell].emplace_back();
      step.kind = one.kind;
      step.sums = !(one.contributions.empty() && one.combines.empty() && one.sum_reads.empty());
      if (section.parts.size() > 1)
        step.training_step = static_cast<int16_t>(part.step + one.ahead);
      step.completes = one.count == 0 || one.first + one.count ==
                                             num_elements(role.tensor(one.args.back()).type.shape);
      step.slot = first_slot + one.stream;
      step.program = one.program;
      step.micro = one.micro;
      step.first_arg = static_cast<int32_t>(section.args[cell].size());
      step.num_args = static_cast<int32_t>(one.args.size());
      step.first_wait = static_cast<int32_t>(section.waits[cell].size());
      step.num_waits = static_cast<int32_t>(one.waits.size());
      section.lists[cell].push_back(&one);
      section.args[cell].insert(section.args[cell].end(), one.args.begin(), one.args.end());
      // Waits count from the begin of their part.
      for (int32_t wait : one.waits) section.waits[cell].push_back(begin + wait);
    }
    section.ends[cell].push_back(static_cast<int32_t>(section.steps[cell].size()));
  }
  section.partner[cell].resize(size);
  section.joint[cell].assign(size, -1);
}

}  // namespace

Section make_section(const Model& model, const char* name, std::vector<SectionPart> parts) {
  const size_t cells = model.cells.size();
  Section section;
  section.name = name;
  section.parts = std::move(parts);
  section.lists.resize(cells);
  section.steps.resize(cells);
  section.args.resize(cells);
  section.waits.resize(cells);
  section.ends.resize(cells);
  section.partner.resize(cells);
  section.joint.resize(cells);
  std::vector<int32_t> first_slot;
  for (const Cell& cell : model.cells) {
    first_slot.push_back(section.slots);
    section.slots += static_cast<int32_t>(cell.role->streams.size());
  }
  for_each(*model.cells[0].role, cells,
           [&](size_t c) { add_cell(model, c, first_slot[c], section); });
  return section;
}

std::string name_of(const Instruction& instruction) {
  if (instruction.label.empty()) return fmt::format("a {}", to_string(instruction.kind));
  return fmt::format("'{}'", quote_control(instruction.label));
}

std::string name_of(const Model& model, const Section& section, Spot place) {
  return fmt::format("{} on {}", name_of(section.at(place)), model.who(place.cell));
}

bool Findings::takes(std::string_view rule) const {
  return static_cast<size_t>(std::ranges::count(report_.findings, rule, &Finding::rule)) <
         kFindingsPerRule;
}

void Findings::push(const char* rule, std::string text) {
  ++made_;
  if (takes(rule)) report_.findings.push_back({rule, std::move(text)});
}

namespace {

// A part of the proof that does not depend on others.
using Part = std::function<void(Findings&, VerifyReport&)>;

// Runs all parts in parallel. Findings are in the order of the list. `first`: the parts that take
// longest, which start before the others.
void prove(const Model& model, const std::vector<Part>& parts, std::vector<size_t> first,
           Findings& findings, VerifyReport& report) {
  for (size_t part = 0; part < parts.size(); ++part)
    if (std::find(first.begin(), first.end(), part) == first.end()) first.push_back(part);
  std::vector<VerifyReport> own(parts.size());
  const auto run = [&](size_t i) {
    Findings found(own[first[i]]);
    parts[first[i]](found, own[first[i]]);
  };
  for_each(*model.cells[0].role, parts.size(), run);
  for (const VerifyReport& each : own) {
    report.instructions += each.instructions;
    report.transfers += each.transfers;
    report.collectives += each.collectives;
    report.sums += each.sums;
    report.parameters += each.parameters;
    for (const Finding& finding : each.findings) findings.add(finding);
  }
}

// Returns whether the section can be executed; the other rules need its order.
bool can_run(const Model& model, Section& section, Findings& findings, VerifyReport& report) {
  for (const auto& list : section.lists) report.instructions += static_cast<int64_t>(list.size());
  const size_t before = findings.made();
  check_transfers(model, section, findings, report);
  check_collectives(model, section, findings, report);
  if (findings.made() > before) return false;
  check_deadlock(model, section, findings);
  return findings.made() == before;
}

constexpr SectionPart kPrologue{&RoleProgram::prologue},
    kBody{.list = &RoleProgram::body, .ends_step = true}, kEpilogue{&RoleProgram::epilogue};

// Checks the rules that follow a section in its order of execution. `bodies`: and that a role's
// lists agree. `means`: what it computes, too.
void check_run(const Model& model, const Section& section, const Single* single, bool bodies,
               bool means, Findings& findings, VerifyReport& report) {
  std::vector<Part> parts{[&](Findings& found, VerifyReport&) {
    check_memory(model, section, make_clocks(model, section), found);
  }};
  if (!means) return prove(model, parts, {}, findings, report);
  // Two parts need the layouts; the first one computes them.
  std::once_flag once;
  LayoutsFound found_layouts;
  VerifyReport of_layouts;
  const auto layouts = [&]() -> const LayoutsFound& {
    std::call_once(once, [&] {
      Findings found(of_layouts);
      found_layouts = check_layouts(model, section, found);
    });
    return found_layouts;
  };
  parts.push_back([&](Findings& found, VerifyReport&) {
    check_effects(model, section, single, model.followed != 0 ? &layouts() : nullptr, found);
  });
  parts.push_back(
      [&](Findings& found, VerifyReport&) { check_equal_copies(model, section, found); });
  parts.push_back(
      [&](Findings& found, VerifyReport& counts) { check_sums(model, section, found, counts); });
  parts.push_back([&](Findings& found, VerifyReport&) {
    layouts();
    for (const Finding& one : of_layouts.findings) found.add(one);
  });
  parts.push_back(
      [&](Findings& found, VerifyReport&) { check_draws(model, section, single, found); });
  if (bodies) parts.push_back([&](Findings& found, VerifyReport&) { check_bodies(model, found); });
  // The part that computes the layouts begins; the one that only waits for them comes last.
  prove(model, parts, {1, 0, 3, 2, 5}, findings, report);
}

// Takes the windows of all roles.
void take_windows(const PlanSet& set, Model& model) {
  const std::vector<Window> windows = windows_of(set.roles[0].steps_ahead);
  for (const RoleProgram& role : set.roles) {
    model.windows.emplace_back();
    for (const Window& window : windows)
      model.windows.back().push_back(instructions_of(role, window));
  }
}

// Returns how many overlapping training steps are followed, each time from their begin to their
// end: so many that a body follows a body, and so few that there is none.
std::vector<int32_t> followed_steps(int32_t steps_ahead) {
  std::vector<int32_t> all{steps_ahead + 2};
  for (int32_t steps = 1; steps < steps_ahead; ++steps) all.push_back(steps);
  return all;
}

Section make_steps(const Model& model, int32_t steps) {
  const int32_t most = model.cells[0].role->steps_ahead;
  const std::vector<Window> windows = windows_of(most);
  std::vector<SectionPart> parts;
  for (int32_t step = -most; step < steps; ++step) {
    const auto window = std::ranges::find(windows, window_at(most, step, 0, steps));
    parts.push_back({.window = static_cast<size_t>(window - windows.begin()),
                     .step = std::max(step, 0),
                     .ends_step = step >= 0});
  }
  return make_section(model, "steps", std::move(parts));
}

// Follows `steps` steps of the plan for one device. Null: it cannot be executed, which is reported
// when that plan itself is verified.
Result<std::unique_ptr<Single>> follow_single(const PlanSet& set, bool has_sites, int32_t steps,
                                              bool whole) {
  auto single = std::make_unique<Single>();
  PIPER_ASSIGN(single->model, make_model(set, has_sites));
  single->section = make_section(single->model, "body", {kBody});
  VerifyReport report;
  Findings findings(report);
  if (single->model.cells.size() > 1 || !can_run(single->model, single->section, findings, report))
    return std::unique_ptr<Single>();
  single->effects = follow(single->model, single->section, steps, whole, nullptr);
  return single;
}

// Returns whether the plan for one device plays the samples of all replicas.
bool has_all_samples(const Effects& one_device, int64_t batch) {
  int64_t samples = 0;
  for (const Effects::Added& one : one_device.added)
    if (const Effects::Added& first = one_device.added.front();
        one.step == first.step && one.target == first.target)
      samples += one.count;
  return samples == batch;
}

// Takes from the plan for one device the order of gradients in the norm, and which sum is the loss.
void take_sums(Model& model, const Effects& one_device) {
  std::unordered_map<uint64_t, int32_t> sums;  // by symbol
  Values values;
  for (int32_t t = 0; t < static_cast<int32_t>(model.targets.size()); ++t) {
    const uint64_t sum = sum_symbol(0, model.targets[t]);
    sums.emplace(sum, t);
    sums.emplace(values.cast(sum, "f32"), t);  // a 16-bit sum is cast before it is used
  }
  for (const uint64_t symbol : one_device.normed)
    if (const auto sum = sums.find(symbol); sum != sums.end())
      model.norm_order.push_back(sum->second);
  for (const Effects::Reported& one : one_device.reported)
    if (const auto sum = sums.find(one.symbol); is_shown_sum(one.name) && sum != sums.end())
      model.shown.emplace(one.name, sum->second);
}

// Says what a plan is of one that was taken apart.
struct Taken {
  bool trains = true;     // see Model
  bool is_apart = false;  // likewise
  // Each of its parts is proven by itself: here that they may run at the same time.
  bool is_joined = false;
};

Result<VerifyReport> verify_steps(const PlanSet& set, const PlanSet* one_device, Taken taken) {
  PIPER_ASSIGN(Model model, make_model(set, taken.is_apart));
  model.trains = taken.trains, model.is_apart = taken.is_apart;
  const bool overlap = model.cells[0].role->steps_ahead > 0;
  const std::vector<int32_t> counts =
      overlap ? followed_steps(model.cells[0].role->steps_ahead) : std::vector<int32_t>{1};
  std::vector<std::unique_ptr<Single>> singles(counts.size());
  for (size_t s = 0; one_device && s < singles.size(); ++s) {
    PIPER_ASSIGN(singles[s],
                 follow_single(*one_device, taken.is_apart, counts[s], model.followed != 0));
  }
  const Single* single = singles[0].get();
  if (single) take_sums(model, single->effects);
  // Plans that are followed form sums in another order.
  if (single && model.followed == 0 && has_all_samples(single->effects, set.roles[0].batch))
    model.norm_runs = runs_of_norm(*single->model.cells[0].role);
  VerifyReport report;
  report.ranks = set.world();
  report.cells = static_cast<int64_t>(model.cells.size());
  for (size_t axis = 0; axis < model.mesh.size(); ++axis)
    if (model.followed >> axis & 1) report.axes.push_back(model.mesh[axis].first);
  Findings findings(report);
  std::vector<Section> sections;
  if (overlap) sections.push_back(make_section(model, "prologue", {kPrologue}));
  sections.push_back(make_section(model, "body", {kBody}));
  if (overlap) sections.push_back(make_section(model, "epilogue", {kEpilogue}));
  const auto structure = [&](Findings& found, VerifyReport&) {
    for (const RoleProgram& role : set.roles)
      for (const auto& [name, list] :
           {std::pair("prologue", &role.prologue), {"epilogue", &role.epilogue}})
        if (!overlap && !list->empty())
          found.add("structure", "there is a{} {}, and steps do not overlap",
                    list == &role.epilogue ? "n" : "", name);
    check_structure(model, sections, found);
    check_staging(model, found);
    if (single) check_names(model, *single, found);
    if (single && set.manifest.seed != one_device->manifest.seed)
      found.add("single", "the seed is {}, not {}", set.manifest.seed, one_device->manifest.seed);
  };
  std::vector<Section> steps;
  if (overlap) {
    take_windows(set, model);
    for (const int32_t count : counts) steps.push_back(make_steps(model, count));
  }
  std::vector<Section>& run = overlap ? steps : sections;
  std::vector<bool> runs;
  prove(model,
        {structure,
         [&](Findings& found, VerifyReport& counts) {
           for (Section& section : run) runs.push_back(can_run(model, section, found, counts));
         }},
        {1}, findings, report);
  for (size_t s = 0; s < run.size(); ++s)
    if (runs[s])
      check_run(model, run[s], singles[s].get(), overlap && s == 0, !taken.is_joined, findings,
                report);
  return report;
}

// Joins what was found of a section beside the steps with what was found of these.
void add_section(const char* name, VerifyReport of_section, VerifyReport& report) {
  report.instructions += of_section.instructions;
  report.transfers += of_section.transfers;
  report.collectives += of_section.collectives;
  report.sums += of_section.sums;
  for (Finding& finding : of_section.findings)
    report.findings.push_back({std::move(finding.rule), fmt::format("{}: {}", name, finding.text)});
}

// Says of roles with sections beside the steps what the rules read of the plans that these are
// taken apart into cannot say.
void check_whole(const PlanSet& set, VerifyReport& report) {
  Findings findings(report);
  const bool evaluates = piper::evaluates(set);
  for (const RoleProgram& role : set.roles) {
    if (evaluates && role.evaluation.empty())
      findings.add("structure", "some ranks have an evaluation, and others have none");
    if (const int64_t taken = staging_of(role); role.staging_bytes != taken)
      findings.add("memory",
                   "{} bytes are stated to stage what the host brings; inputs, positions and "
                   "reports of steps and evaluation take {}",
                   role.staging_bytes, taken);
  }
}

// Says when a role's outer updates run.
std::string times_of_updates(const RoleProgram& role) {
  std::string text;
  for (const OuterUpdate& one : role.outer_updates)
    text += fmt::format("{}each {} steps{}", text.empty() ? "" : ", ", one.every,
                        one.offset == 0 ? "" : fmt::format(" and {}", one.offset));
  return text.empty() ? "never" : text;
}

// Returns whether all roles of both have outer updates at the same steps; what differs is found.
bool check_outer_updates(const PlanSet& set, const PlanSet* one_device, VerifyReport& report) {
  const auto& all = set.roles[0].outer_updates;
  const auto differ = [&](const RoleProgram& role) {
    return !std::ranges::equal(all, role.outer_updates, [](const auto& a, const auto& b) {
      return a.every == b.every && a.offset == b.offset;
    });
  };
  if (const auto other = std::ranges::find_if(set.roles, differ); other != set.roles.end()) {
    report.findings.push_back(
        {"structure", fmt::format("outer updates run {} on some ranks, {} on others",
                                  times_of_updates(set.roles[0]), times_of_updates(*other))});
    return false;
  }
  if (one_device == nullptr || std::ranges::none_of(one_device->roles, differ)) return true;
  report.findings.push_back({"single", fmt::format("outer updates run {}, and {} on one device",
                                                   times_of_updates(set.roles[0]),
                                                   times_of_updates(one_device->roles[0]))});
  return false;
}

// Proves a section beside the steps, which `take` takes out of a plan set, and adds what is found.
// Only `one_device` may be without it.
Status verify_section(const PlanSet& set, const PlanSet* one_device, const char* name,
                      const std::function<PlanSet(const PlanSet&)>& take, Taken taken,
                      VerifyReport& report) {
  std::optional<PlanSet> single;
  if (one_device != nullptr) single = take(*one_device);
  PIPER_ASSIGN(VerifyReport found, verify_steps(take(set), single ? &*single : nullptr, taken));
  add_section(name, std::move(found), report);
  return ok_status();
}

}  // namespace

Result<VerifyReport> verify_plan_set(const PlanSet& set, const PlanSet* one_device) {
  const auto has_sections = [](const PlanSet& of) {
    return evaluates(of) || outer_updates(of) > 0;
  };
  if (!has_sections(set) && (one_device == nullptr || outer_updates(*one_device) == 0))
    return verify_steps(set, one_device, {});
  PIPER_TRY(check_shared(set));
  if (one_device != nullptr) PIPER_TRY(check_shared(*one_device));
  std::optional<PlanSet> single;
  if (one_device != nullptr) single = steps_of(*one_device);
  PIPER_ASSIGN(VerifyReport report, verify_steps(steps_of(set), single ? &*single : nullptr,
                                                 {.is_apart = outer_updates(set) > 0}));
  check_whole(set, report);
  if (evaluates(set)) {
    const bool compares = one_device != nullptr && evaluates(*one_device);
    if (one_device != nullptr && !compares)
      report.findings.push_back({"single", "evaluation: one device has none"});
    PIPER_TRY(verify_section(set, compares ? one_device : nullptr, "evaluation", evaluation_of,
                             {.trains = false}, report));
  }
  if (!check_outer_updates(set, one_device, report)) return report;
  for (size_t u = 0; u < outer_updates(set); ++u)
    PIPER_TRY(verify_section(
        set, one_device, "outer update", [&](const PlanSet& of) { return outer_of(of, u); },
        {.is_apart = true}, report));
  for (size_t u = 0; u < outer_updates(set); ++u)
    if (std::ranges::any_of(set.roles, [&](const RoleProgram& role) {
          return runs_beside(role, role.outer_updates[u]);
        }))
      PIPER_TRY(verify_section(
          set, nullptr, "a step beside an outer update",
          [&](const PlanSet& of) { return steps_beside(of, u); },
          {.is_apart = true, .is_joined = true}, report));
  return report;
}

}  // namespace piper
