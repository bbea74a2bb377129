// Sections about what it costs: memory, FLOPs, stages, recomputation, offloading, versions.
#include <algorithm>

#include "match.h"

namespace piper {
namespace {

// A role that is not there costs nothing.
template <class Field>
std::optional<double> perhaps(const RoleSummary* role, Field field) {
  if (!role) return {};
  return static_cast<double>(role->*field);
}
template <class Field>
double of(const RoleSummary* role, Field field) {
  return role ? static_cast<double>(role->*field) : 0;
}
template <class Field>
DiffSection::Measure greatest(const SetMatch& match, Field field, DiffUnit unit) {
  DiffSection::Measure measure{0, 0, unit};
  for (const DevicePair& pair : match.devices) {
    measure.before = std::max(measure.before, of(match.role_before(pair), field));
    measure.after = std::max(measure.after, of(match.role_after(pair), field));
  }
  return measure;
}

std::string stage_text(const StageSummary& stage) {
  return fmt::format("{} ops, {} forward, {} of weights", stage.ops,
                     human_flops(stage.forward_flops), human_bytes(stage.weight_bytes));
}

struct StageField {
  const char* what;
  double (*get)(const StageSummary&);
  DiffUnit unit;
  bool of_micro = true;  // of one microbatch, whose size another number of them changes
};
constexpr StageField kStageFields[] = {
    {"forward ops", [](const StageSummary& s) { return double(s.ops); }, DiffUnit::kCount, false},
    {"forward", [](const StageSummary& s) { return s.forward_flops; }, DiffUnit::kFlops},
    {"backward", [](const StageSummary& s) { return s.backward_flops; }, DiffUnit::kFlops},
    {"weights", [](const StageSummary& s) { return double(s.weight_bytes); }, DiffUnit::kBytes,
     false},
    {"optimizer states", [](const StageSummary& s) { return double(s.state_bytes); },
     DiffUnit::kBytes, false},
    {"kept for the backward", [](const StageSummary& s) { return s.kept_bytes; }, DiffUnit::kBytes},
    {"sent", [](const StageSummary& s) { return s.sent_bytes; }, DiffUnit::kBytes}};

OffloadSummary offload_of(const RoleSummary* role, const std::string& what) {
  if (role)
    for (const OffloadSummary& offload : role->offloads)
      if (offload.what == what) return offload;
  return {what};
}

std::string share_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string passes_text(const StageSummary& stage) {
  std::set<std::string> passes;
  for (const auto& [pass, digest] : stage.programs) passes.insert(name_of(pass));
  return join(std::vector<std::string>(passes.begin(), passes.end()), ", ");
}

// Where the number of microbatches differs, so does all of one of them: then those of a step are
// compared.
void compare_stage(const SetMatch::StagePair& pair, SectionChanges& section) {
  const StageSummary &before = *pair.before, &after = *pair.after;
  for (const StageField& field : kStageFields) {
    const bool of_step = field.of_micro && before.runs != after.runs;
    add_number(section, pair.name(), field.what + std::string(of_step ? ", a step" : ""),
               field.get(before) * (of_step ? double(before.runs) : 1),
               field.get(after) * (of_step ? double(after.runs) : 1), field.unit);
  }
  if (!section.changes.empty() || before.runs != after.runs) return;
  add_text(section, pair.name(), "passes", passes_text(*pair.before), passes_text(*pair.after));
  if (section.changes.empty() && pair.before->programs != pair.after->programs)
    add_text(section, pair.name(), "programs", std::string("those of before"),
             std::string("others of as many operations"));
}

}  // namespace

void compare_memory(const SetMatch& match, SectionChanges& section) {
  struct Field {
    const char* what;
    int64_t RoleSummary::*bytes;
  };
  constexpr Field kFields[] = {{"peak", &RoleSummary::peak_bytes},
                               {"weights", &RoleSummary::weight_bytes},
                               {"optimizer states", &RoleSummary::optimizer_bytes},
                               {"constants", &RoleSummary::constant_bytes},
                               {"within the step", &RoleSummary::step_bytes},
                               {"workspaces", &RoleSummary::workspace_bytes},
                               {"packed weights and gaps between rows", &RoleSummary::packed_bytes},
                               {"transport", &RoleSummary::transport_bytes},
                               {"scratch of kernels", &RoleSummary::scratch_bytes},
                               {"on the host", &RoleSummary::host_bytes}};
  for (const Field& field : kFields)
    for (const DevicePair& pair : match.devices) {
      const auto was = perhaps(match.role_before(pair), field.bytes),
                 is = perhaps(match.role_after(pair), field.bytes);
      // Of a device that came or went the peak says enough.
      if ((was && is) || field.bytes == &RoleSummary::peak_bytes)
        add_numbers(section, match.where(pair), field.what, was, is, DiffUnit::kBytes);
    }
  section.measure = greatest(match, &RoleSummary::peak_bytes, DiffUnit::kBytes);
  section.summary = measure_text("the largest peak", *section.measure);
  for (const DevicePair& pair : match.devices)
    for (const auto& [whose, bytes] :
         {std::pair("", &RoleSummary::peak_bytes), {" on the host", &RoleSummary::host_bytes}})
      section.each.push_back({match.where(pair) + whose,
                              {of(match.role_before(pair), bytes),
                               of(match.role_after(pair), bytes), DiffUnit::kBytes}});
}

void compare_target(const SetMatch& match, SectionChanges& section) {
  const auto value = [](const std::string& text) {
    return text.empty() ? DiffValue() : DiffValue(quote_control(text));
  };
  const RoleSummary &was = match.before.roles.at(0), &is = match.after.roles.at(0);
  add_text(section, "", "made for", value(was.target), value(is.target));
  add_text(section, "", "table of algorithms", value(was.table), value(is.table));
  section.summary =
      was.target == is.target ? "algorithms are chosen otherwise" : "the devices differ";
}

void compare_flops(const SetMatch& match, SectionChanges& section) {
  for (const DevicePair& pair : match.devices)
    add_numbers(section, match.where(pair), "a step",
                perhaps(match.role_before(pair), &RoleSummary::flops),
                perhaps(match.role_after(pair), &RoleSummary::flops), DiffUnit::kFlops);
  section.measure = greatest(match, &RoleSummary::flops, DiffUnit::kFlops);
  section.summary = measure_text("the busiest device", *section.measure);
}

// Compares the times on a machine, where they have been simulated there; else those that the
// compiler has simulated. Plans of too many instructions say nothing.
void compare_time(const SetMatch& match, SectionChanges& section) {
  const auto &was = match.before.manifest.predictions, &is = match.after.manifest.predictions;
  const auto known = [&](const char* name) { return was.contains(name) && is.contains(name); };
  if (known("step_seconds") && known("machine_idle")) {
    add_number(section, "", "a step takes", was.at("step_seconds"), is.at("step_seconds"),
               DiffUnit::kSeconds);
    add_text(section, "", "idle", share_text(was.at("machine_idle")),
             share_text(is.at("machine_idle")));
    section.measure = {was.at("step_seconds"), is.at("step_seconds"), DiffUnit::kSeconds};
    section.summary = measure_text("a step takes", *section.measure);
    return;
  }
  section.known = known("idle") && known("step_flops");
  if (!section.known) return;
  add_number(section, "", "length of a step", was.at("step_flops"), is.at("step_flops"),
             DiffUnit::kFlops);
  add_text(section, "", "idle", share_text(was.at("idle")), share_text(is.at("idle")));
  section.measure = {was.at("step_flops"), is.at("step_flops"), DiffUnit::kFlops};
  section.summary = measure_text("messages free, a step is as long as", *section.measure);
}

void compare_stages(const SetMatch& match, SectionChanges& section) {
  size_t differ = 0;
  for (const SetMatch::StagePair& pair : match.stages()) {
    SectionChanges here;
    if (!pair.before || !pair.after)
      add_text(here, pair.name(), pair.before ? "gone" : "added",
               pair.before ? DiffValue(stage_text(*pair.before)) : DiffValue(),
               pair.after ? DiffValue(stage_text(*pair.after)) : DiffValue());
    else
      compare_stage(pair, here);
    differ += !here.changes.empty();
    for (Change& change : here.changes) add_change(section, std::move(change));
  }
  section.summary =
      fmt::format("{} of {} differ; of one microbatch:", differ, match.stages().size());
}

void compare_recompute(const SetMatch& match, SectionChanges& section) {
  DiffSection::Measure measure{0, 0, DiffUnit::kCount};
  for (const SetMatch::StagePair& pair : match.stages()) {
    const StageSummary none, &was = pair.before ? *pair.before : none,
                             &is = pair.after ? *pair.after : none;
    add_number(section, pair.name(), "ops that run again", was.recomputed, is.recomputed,
               DiffUnit::kCount);
    measure.before = std::max(measure.before, was.recomputed);
    measure.after = std::max(measure.after, is.recomputed);
  }
  section.measure = measure;
  section.summary = measure_text("ops of the stage with most:", measure);
}

void compare_offload(const SetMatch& match, SectionChanges& section) {
  DiffSection::Measure measure{0, 0, DiffUnit::kBytes};
  for (const DevicePair& pair : match.devices) {
    double bytes[2] = {0, 0};
    for (const char* what : {"activations", "optimizer"}) {
      const OffloadSummary was = offload_of(match.role_before(pair), what),
                           is = offload_of(match.role_after(pair), what);
      add_number(section, match.where(pair), fmt::format("{} to the host: copies", what),
                 double(was.values), double(is.values), DiffUnit::kCount);
      add_number(section, match.where(pair), fmt::format("{} to the host", what), double(was.bytes),
                 double(is.bytes), DiffUnit::kBytes);
      bytes[0] += double(was.bytes);
      bytes[1] += double(is.bytes);
    }
    measure.before = std::max(measure.before, bytes[0]);
    measure.after = std::max(measure.after, bytes[1]);
  }
  section.measure = measure;
  section.summary = measure_text("of the device with most, a step:", measure);
}

void compare_versions(const SetMatch& match, SectionChanges& section) {
  for (const DevicePair& pair : match.devices) {
    add_number(section, match.where(pair), "older versions of parameters",
               of(match.role_before(pair), &RoleSummary::versions),
               of(match.role_after(pair), &RoleSummary::versions), DiffUnit::kCount);
    add_number(section, match.where(pair), "memory of older versions",
               of(match.role_before(pair), &RoleSummary::version_bytes),
               of(match.role_after(pair), &RoleSummary::version_bytes), DiffUnit::kBytes);
  }
  section.summary = "weights of the step before, kept for the backward";
}

}  // namespace piper
